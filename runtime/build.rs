//! Compiles the control plane's protocol, without a protoc on the machine.

use std::path::PathBuf;
use std::{env, error, fs};

/// The protocol, beside this file.
const PROTOCOL: &str = "proto/pocket/control/v1/control.proto";

fn main() -> Result<(), Box<dyn error::Error>> {
    let mut compiler = protox::Compiler::new(["proto"])?;
    // Comments are the documentation of the generated types.
    compiler.include_source_info(true).open_file(PROTOCOL)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    // For reflection.
    fs::write(out.join("control_descriptors.bin"), compiler.encode_file_descriptor_set())?;
    tonic_prost_build::configure()
        .type_attribute(".", "#[derive(serde::Serialize)]")
        .compile_fds(compiler.file_descriptor_set())?;
    println!("cargo:rerun-if-changed=proto");
    Ok(())
}
