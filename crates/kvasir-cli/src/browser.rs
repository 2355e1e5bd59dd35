//! Opens a page of the console in the user's browser.

use std::{
    io::Write,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// The program that opens a file in the user's preferred browser.
const OPENER: &str = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
/// How long the opener may take to report that there is no browser. Some openers run as long as the browser does.
const FAILURE_AFTER_MAX: Duration = Duration::from_secs(3);

/// Opens an address in the user's browser; false if there is none.
///
/// The browser gets a file that redirects to the address: other users of the host see the arguments of programs, and an
/// address may contain tokens of a prompt. Only this user can read the file. It stays in the folder for temporary
/// files, because nothing reports when the browser has read it.
pub(crate) fn open(address: &str) -> bool {
    let Ok(page) = redirect(address) else { return false };
    let mut opener = Command::new(OPENER);
    opener.arg(page.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut opener) = opener.spawn() else { return false };
    let (ended, end) = mpsc::channel();
    thread::spawn(move || ended.send(opener.wait()));
    let is_open = match end.recv_timeout(FAILURE_AFTER_MAX) {
        Ok(status) => status.as_ref().is_ok_and(ExitStatus::success),
        Err(_) => true,
    };
    is_open && page.keep().is_ok()
}

fn redirect(address: &str) -> std::io::Result<tempfile::NamedTempFile> {
    let mut page = tempfile::Builder::new().prefix("kvasir-").suffix(".html").tempfile()?;
    let address = escape(address);
    writeln!(
        page,
        "<!doctype html><meta charset=\"utf-8\"><title>Kvasir</title>\
         <meta http-equiv=\"refresh\" content=\"0; url={address}\"><a href=\"{address}\">The console</a>"
    )?;
    page.flush()?;
    Ok(page)
}

/// Text as a quoted attribute of HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;").replace('>', "&gt;")
}
