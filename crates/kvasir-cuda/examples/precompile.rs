//! Compiles the kernels into a folder for some architectures, on a machine with NVRTC and without a GPU:
//! `precompile FOLDER 8.0 9.0`.
#![allow(clippy::print_stdout, reason = "reports what it wrote")]

use std::{error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = PathBuf::from(arguments.next().ok_or("name a folder")?);
    let capability = |text: String| -> Result<(i32, i32), Box<dyn Error>> {
        let (major, minor) = text.split_once('.').ok_or("an architecture is a capability: 9.0")?;
        Ok((major.parse()?, minor.parse()?))
    };
    let capabilities = arguments.map(capability).collect::<Result<Vec<_>, _>>()?;
    let count = kvasir_cuda::precompile(&folder, &capabilities).map_err(|error| error.to_string())?;
    println!("{count} cubins in {}", folder.display());
    Ok(())
}
