//! nginx over a directory, with `sendfile`.

use std::{fmt::Write as _, path::Path, process::Command};

use anyhow::Result;

/// The command that serves the files in `root`. `listen` is an address, with what nginx takes behind it; `workers` is its
/// `worker_processes`.
pub(crate) fn command(binary: &Path, root: &Path, listen: &str, workers: &str) -> Result<Command> {
    let folder = root.display();
    let mut text = format!(
        "daemon off; worker_processes {workers}; pid {folder}/nginx.pid; error_log stderr error; events {{}}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000;\n"
    );
    for kind in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(text, "{kind}_temp_path {folder}/{kind};")?;
    }
    writeln!(text, "server {{ listen {listen}; root {folder}; }} }}")?;
    let config = root.join("nginx.conf");
    std::fs::write(&config, text)?;
    let mut command = Command::new(binary);
    command.arg("-c").arg(config).arg("-p").arg(root).args(["-e", "stderr"]);
    Ok(command)
}
