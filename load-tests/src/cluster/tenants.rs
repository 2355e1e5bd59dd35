//! Tenants with separate tokens.

use std::{fmt::Write as _, path::Path};

use anyhow::Result;
use sha2::{Digest as _, Sha256};

use crate::scenario::spec::ServiceSpec;

/// Writes the token file if a scenario has tenants, and returns the tokens. The first tenant has the quotas;
/// all are admins, so that any may run jobs.
pub(crate) fn file(spec: &ServiceSpec, directory: &Path, flags: &mut Vec<String>) -> Result<Vec<String>> {
    if spec.tenants == 0 {
        return Ok(Vec::new());
    }
    let (mut text, mut tokens) = (String::new(), Vec::new());
    for nth in 0..spec.tenants {
        let token = format!("load-test-token-of-tenant-{nth:04}-not-a-secret");
        let digest = Sha256::digest(token.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        write!(
            text,
            "[[token]]\nname = \"load\"\ntenant = \"t{nth}\"\nrole = \"admin\"\nsha256 = \"{hex}\"\n\n"
        )?;
        tokens.push(token);
    }
    if !spec.quota.is_empty() {
        writeln!(text, "[tenant.t0]\n{}", spec.quota.join("\n"))?;
    }
    let path = directory.join("tenants.toml");
    std::fs::write(&path, text)?;
    flags.push(format!("--auth.tenants_file={}", path.display()));
    Ok(tokens)
}
