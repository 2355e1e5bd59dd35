//! Errors as the user sees them: one sentence, what to do, and an exit code.

use std::{fmt, path::Path, process::ExitCode};

/// Exit codes, after `sysexits.h`. Usage errors exit with 2, as in clap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The command worked and the answer is negative, for example: nothing is stored for these tokens.
    Nothing = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration has mistakes.
    Config = 64,
    /// An input is malformed, corrupt, or from another model or profile.
    Data = 65,
    /// An input cannot be read.
    NoInput = 66,
    /// The service or its store does not answer.
    Unavailable = 69,
    /// A bug, or the failure of a step that should not fail.
    Internal = 70,
    /// An output cannot be written.
    NoOutput = 73,
    /// The service refused the credential or its role, or the tenant's storage quota is exhausted.
    Refused = 77,
}

/// The exit codes as text, for `kvasir --help`.
pub const EXIT_CODES: &str = "Exit codes: 0 done · 1 nothing is stored for these tokens · 2 wrong usage · 64 wrong configuration · \
     65 wrong or corrupt input · 66 input cannot be read · 69 service or store unavailable · 70 internal error · \
     73 output cannot be written · 77 refused by the service: credential, role or storage quota";

/// A failed command.
#[derive(Debug)]
pub struct CliError {
    exit: Exit,
    message: String,
    advice: String,
}

/// Result of a command.
pub type CliResult<T = ()> = Result<T, CliError>;

impl CliError {
    /// An error with advice on what to do (empty if the message contains it).
    pub fn new(exit: Exit, message: impl fmt::Display, advice: impl Into<String>) -> Self {
        Self { exit, message: message.to_string(), advice: advice.into() }
    }

    /// A malformed or unsuitable input file.
    pub fn data(path: &Path, error: impl fmt::Display) -> Self {
        Self::new(Exit::Data, format!("{}: {error}", path.display()), "")
    }

    /// The failure of a step that should not fail.
    pub fn internal(error: impl fmt::Display) -> Self {
        Self::new(Exit::Internal, error, "This should not happen; please report it with the command line.")
    }

    /// A service or store that does not answer.
    pub fn unavailable(error: impl fmt::Display) -> Self {
        Self::new(Exit::Unavailable, error, "")
    }

    /// What went wrong, without the advice.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What kind of failure it is.
    pub const fn exit(&self) -> Exit {
        self.exit
    }

    /// The process's exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.exit as u8)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if self.advice.is_empty() { Ok(()) } else { write!(f, "\n{}", self.advice) }
    }
}

/// Reads a whole input file.
pub fn read_file(path: &Path) -> CliResult<Vec<u8>> {
    std::fs::read(path).map_err(|e| {
        CliError::new(Exit::NoInput, format!("cannot read {}: {e}", path.display()), "Check the path.")
    })
}

/// Refuses an output path at which something other than a file is: outputs are written beside their place and renamed,
/// which would replace a device or a pipe.
pub fn check_replaceable(path: &Path) -> CliResult {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            let message = format!("{} is not a regular file", path.display());
            Err(CliError::new(
                Exit::NoOutput,
                message,
                "Give the path of a file: outputs replace what is there.",
            ))
        }
        _ => Ok(()),
    }
}

/// Writes a whole output file atomically: a reader never sees a part of it.
pub fn write_file(path: &Path, bytes: &[u8]) -> CliResult {
    check_replaceable(path)?;
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let write = || -> std::io::Result<()> {
        let mut builder = tempfile::Builder::new();
        // Like any program's output: permissions follow the user's umask, not the temporary file's 0600.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut file = builder.tempfile_in(folder)?;
        std::io::Write::write_all(&mut file, bytes)?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|e| {
        CliError::new(
            Exit::NoOutput,
            format!("cannot write {}: {e}", path.display()),
            "Check that the folder exists and is writable.",
        )
    })
}
