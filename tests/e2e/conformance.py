"""Holds a running daemon to its own description, with Schemathesis.

    python conformance.py http://127.0.0.1:8000 CASES

Requests are made from /openapi.json, good and bad ones, with a fixed seed: those at the limits of every
field, and CASES random ones for each operation. Ends with 0 if every answer had a described status, media
type and schema, and none was a failure of the server.
"""

import sys

from schemathesis.cli import schemathesis

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
]


def main(server, cases):
    options = {
        "checks": ",".join(CHECKS),
        "phases": "examples,coverage,fuzzing",
        "max-examples": cases,
        "seed": "7",
        "generation-database": "none",
        # How long it takes to think of a request says nothing about the server.
        "suppress-health-check": "all",
        "request-timeout": "60",
        "warnings": "off",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    schemathesis(["run", f"{server}/openapi.json", "--continue-on-failure", "--no-color", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
