//! The command that repeats a measurement.

use std::env;

/// Options whose values are nobody's business, and what stands in for them.
const SECRETS: [(&str, &str); 2] = [("--api-key", "$OPENAI_API_KEY"), ("--header", "...")];

/// Variables that change what the program does start with one of these: flags, settings.
const OURS: [&str; 2] = ["POCKET_", "POCKETD_"];

/// How the names of variables end whose values are secrets.
const SECRET_ENDS: [&str; 3] = ["_KEY", "_KEYS", "_TOKEN"];

/// The command line of this process, as a shell takes it, with the flags and settings of its environment in
/// front and without secrets.
pub fn this_command() -> String {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let variables = env::vars_os().map(|(name, value)| (text(name), text(value)));
    let mut variables: Vec<_> = variables.filter(|(name, _)| is_told(name)).collect();
    variables.sort();
    let mut args: Vec<String> = env::args_os().map(text).collect();
    if let Some(program) = args.first_mut()
        && let Some(name) = program.rsplit('/').next()
    {
        *program = name.to_owned();
    }
    command_line(&variables, &args)
}

fn is_told(name: &str) -> bool {
    OURS.iter().any(|start| name.starts_with(start))
        && !SECRET_ENDS.iter().any(|end| name.ends_with(end))
}

/// Variables and arguments as a shell takes them, without the values of secret options.
pub fn command_line(variables: &[(String, String)], args: &[String]) -> String {
    let mut words: Vec<String> =
        variables.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
    let mut secret = None;
    for arg in args {
        // An option may have several values.
        match secret {
            Some(stand_in) if !arg.starts_with("--") => {
                words.push(format!("\"{stand_in}\""));
                continue;
            }
            _ => secret = None,
        }
        let option = SECRETS.iter().find(|(option, _)| arg.split('=').next() == Some(option));
        words.push(match option {
            Some((option, stand_in)) if arg.contains('=') => format!("{option}=\"{stand_in}\""),
            Some((option, stand_in)) => {
                secret = Some(stand_in);
                (*option).to_owned()
            }
            None => quoted(arg),
        });
    }
    words.join(" ")
}

/// One word of a shell, quoted if it must be.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_shell_reads_back_what_was_given() {
        let words = owned(&["a b", "it's", "", "$HOME", "plain=1", "`x`", "é\n*"]);
        let line = command_line(&[("POCKET_X".to_owned(), "a 'b'".to_owned())], &owned(&["env"]));
        assert_eq!(line, r"POCKET_X='a '\''b'\''' env");
        let line = command_line(&[], &words);
        let script = format!("printf '%s\\0' {line}");
        let said = Command::new("sh").args(["-c", &script]).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let read: Vec<&str> = said.strip_suffix('\0').unwrap().split('\0').collect();
        assert_eq!(read, words);
    }

    #[test]
    fn secrets_stay_out() {
        for args in [
            &["pocketd", "--api-key", "sesame", "--seed", "1"][..],
            &["pocketd", "--api-key=sesame", "--seed", "1"],
            &["pocketd", "--header", "X-Key: sesame", "--seed", "1"],
            &["pocketd", "--header", "a=sesame", "b=sesame", "--seed", "1"],
        ] {
            let line = command_line(&[], &owned(args));
            assert!(!line.contains("sesame"), "{line}");
            assert!(line.ends_with("--seed 1"), "{line}");
        }
        let line = command_line(&[], &owned(&["pocketd", "--api-key", "x"]));
        assert_eq!(line, "pocketd --api-key \"$OPENAI_API_KEY\"");
    }

    #[test]
    fn flags_and_settings_are_told_and_keys_are_not() {
        assert!(is_told("POCKET_PREFILL_MERGE") && is_told("POCKETD_MAX_NUM_BATCHED_TOKENS"));
        assert!(!is_told("POCKETD_API_KEY") && !is_told("PATH") && !is_told("OPENAI_API_KEY"));
    }

    #[test]
    fn this_process_is_named_without_its_folder() {
        let line = this_command();
        assert!(!line.split(' ').next().unwrap().contains('/'), "{line}");
    }
}
