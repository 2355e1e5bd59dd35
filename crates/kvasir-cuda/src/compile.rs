//! NVRTC at first use, with a cache on disk: text, architecture and compiler name a cubin.

use std::{
    collections::BTreeSet,
    ffi::CString,
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io::Write,
    path::{Path, PathBuf},
};

use cudarc::nvrtc::{result, sys};
use kvasir_kernels::{KERNELS, translation_unit};

use crate::DeviceError;

/// Options that change the numbers or the code; part of the cache key. Nothing is fused, nothing flushed.
const OPTIONS: &[&str] = &["--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true"];

/// Replaces the driver's version if kernels were compiled without a driver: a cubin of CUDA 13 runs with all
/// of them.
const ANY_DRIVER: i32 = 0;

/// Compiles all kernels into `cache` for GPUs of the given compute capabilities, without a GPU and without
/// its driver. A [`CudaDevice`](crate::CudaDevice) with this cache then needs no NVRTC. Use it to build
/// images on a machine that has NVRTC. Returns the number of cubins.
///
/// # Errors
/// [`DeviceError::NoCompiler`], [`DeviceError::Compile`] where the compiler does not know an architecture, or the cache's.
pub fn precompile(cache: &Path, capabilities: &[(i32, i32)]) -> Result<usize, DeviceError> {
    let units: BTreeSet<&str> = KERNELS.iter().map(|kernel| kernel.source()).collect();
    for capability in capabilities {
        let compiler = Compiler::new(cache.to_owned(), *capability, ANY_DRIVER);
        for unit in &units {
            compiler.cubin(unit)?;
        }
    }
    Ok(units.len() * capabilities.len())
}

/// Compiles translation units for one architecture.
#[derive(Debug, Clone)]
pub(crate) struct Compiler {
    cache: PathBuf,
    architecture: String,
    /// The driver's version, so that a new driver triggers a new compilation.
    driver: i32,
}

impl Compiler {
    /// For compute capability `major.minor`; cubins are kept under `cache`.
    pub(crate) fn new(cache: PathBuf, (major, minor): (i32, i32), driver: i32) -> Self {
        Self { cache, architecture: format!("sm_{major}{minor}"), driver }
    }

    /// The cubin of one of the product's translation units.
    pub(crate) fn cubin(&self, source: &'static str) -> Result<Vec<u8>, DeviceError> {
        self.cubin_of(source, &translation_unit(source))
    }

    /// The cubin of a translation unit.
    pub(crate) fn cubin_of(&self, source: &'static str, text: &str) -> Result<Vec<u8>, DeviceError> {
        let path = self.cache.join(self.file_name(source, text));
        let ahead = Self { driver: ANY_DRIVER, ..self.clone() }.file_name(source, text);
        for path in [&path, &self.cache.join(ahead)] {
            match fs::read(path).map(checked) {
                Ok(Some(cubin)) => return Ok(cubin),
                // What is torn or damaged is compiled again.
                Ok(None) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(cache_error(path, "read", &error)),
            }
        }
        let cubin = self.compile(source, text)?;
        self.keep(&path, &cubin)?;
        Ok(cubin)
    }

    fn file_name(&self, source: &str, text: &str) -> String {
        let mut hash = blake3::Hasher::new();
        for part in OPTIONS.iter().copied().chain([self.architecture.as_str(), text]) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.update(&self.driver.to_le_bytes());
        let hex = hash.finalize().to_hex();
        format!("{}-{}-{}.cubin", source.trim_end_matches(".cu"), self.architecture, &hex[..32])
    }

    /// Written aside and renamed, the cubin's hash behind it: others see all of it or nothing.
    fn keep(&self, path: &Path, cubin: &[u8]) -> Result<(), DeviceError> {
        // Random: threads, and containers whose processes have the same number, may write the same kernel.
        let own = RandomState::new().build_hasher().finish();
        let aside = path.with_extension(format!("{own:016x}.tmp"));
        let write = || {
            fs::create_dir_all(&self.cache)?;
            let mut file = fs::File::create_new(&aside)?;
            file.write_all(cubin)?;
            file.write_all(blake3::hash(cubin).as_bytes())?;
            file.sync_all()?;
            fs::rename(&aside, path)
        };
        write().map_err(|error| {
            let _ = fs::remove_file(&aside);
            cache_error(path, "written", &error)
        })
    }

    fn compile(&self, source: &'static str, text: &str) -> Result<Vec<u8>, DeviceError> {
        // SAFETY: only tries to open the library.
        if !unsafe { sys::is_culib_present() } {
            return Err(DeviceError::NoCompiler);
        }
        let failed = |log: String| DeviceError::Compile {
            source_file: source,
            architecture: self.architecture.clone(),
            log,
        };
        let text = CString::new(text).map_err(|error| failed(error.to_string()))?;
        let program = result::create_program(&text, None).map_err(|error| failed(format!("{error:?}")))?;
        let mut options: Vec<String> = OPTIONS.iter().map(ToString::to_string).collect();
        options.push(format!("--gpu-architecture={}", self.architecture));
        // SAFETY: the program was just created and is destroyed below.
        let compiled = unsafe { result::compile_program(program, &options) };
        let cubin = match compiled {
            Ok(()) => take_cubin(program).map_err(|error| failed(format!("{error:?}"))),
            Err(_) => Err(failed(program_log(program))),
        };
        // SAFETY: not used after this.
        let _ = unsafe { result::destroy_program(program) };
        cubin
    }
}

/// The cubin of a file of the cache, `None` where it is not what was written: the driver is told no length, and would read
/// past the end of a short one.
fn checked(mut kept: Vec<u8>) -> Option<Vec<u8>> {
    let end = kept.len().checked_sub(blake3::OUT_LEN)?;
    let is_whole = blake3::hash(&kept[..end]).as_bytes()[..] == kept[end..];
    kept.truncate(end);
    is_whole.then_some(kept)
}

fn take_cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, result::NvrtcError> {
    let mut size = 0;
    // SAFETY: a compiled program, and a place for the size.
    unsafe { sys::nvrtcGetCUBINSize(program, &raw mut size) }.result()?;
    let mut cubin = vec![0u8; size];
    // SAFETY: `cubin` has the size that was asked for.
    unsafe { sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast()) }.result()?;
    Ok(cubin)
}

fn program_log(program: sys::nvrtcProgram) -> String {
    // SAFETY: a program that exists.
    let log = unsafe { result::get_program_log(program) }.unwrap_or_default();
    let bytes: Vec<u8> = log.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn cache_error(path: &Path, verb: &'static str, error: &std::io::Error) -> DeviceError {
    DeviceError::Cache { path: path.display().to_string(), verb, cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compiles if NVRTC is on the library path; otherwise reports that it is missing.
    #[test]
    fn every_unit_compiles_ahead_or_the_compiler_is_known_to_be_missing() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = folder.path().join("kernels");
        match precompile(&cache, &[(9, 0)]) {
            Ok(count) => {
                let compiler = Compiler::new(cache, (9, 0), 13_000);
                let cubin = compiler.cubin("encode.cu").expect("compiled ahead");
                assert_eq!((&cubin[..4], count >= 8), (&b"\x7fELF"[..], true));
            }
            Err(DeviceError::NoCompiler) => println!("skipped: libnvrtc is not on the library path"),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_was_compiled_ahead_serves_every_driver() {
        let folder = tempfile::tempdir().expect("a folder");
        let ahead = Compiler::new(folder.path().to_owned(), (8, 0), ANY_DRIVER);
        let name = ahead.file_name("decode.cu", &translation_unit("decode.cu"));
        ahead.keep(&folder.path().join(name), b"cubin").expect("writable");
        let compiler = Compiler::new(folder.path().to_owned(), (8, 0), 13_010);
        assert_eq!(compiler.cubin("decode.cu").as_deref(), Ok(&b"cubin"[..]));
        let other = Compiler::new(folder.path().to_owned(), (9, 0), 13_010);
        assert_ne!(other.cubin("decode.cu").as_deref(), Ok(&b"cubin"[..]));
    }

    #[test]
    fn cached_cubins_are_found_and_differ_by_text_and_target() {
        let folder = tempfile::tempdir().expect("a folder");
        let compiler = Compiler::new(folder.path().to_owned(), (8, 0), 13_000);
        let name = compiler.file_name("decode.cu", &translation_unit("decode.cu"));
        compiler.keep(&folder.path().join(name), b"cubin").expect("writable");
        assert_eq!(compiler.cubin("decode.cu").as_deref(), Ok(&b"cubin"[..]));
        let others = [
            Compiler { architecture: "sm_90".into(), ..compiler.clone() }.file_name("decode.cu", "a"),
            Compiler { driver: 13_010, ..compiler.clone() }.file_name("decode.cu", "a"),
            compiler.file_name("decode.cu", "b"),
            compiler.file_name("decode.cu", "a"),
        ];
        let distinct: BTreeSet<_> = others.iter().collect();
        assert_eq!(distinct.len(), others.len());
    }

    #[test]
    fn kernels_are_kept_by_many_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let compiler = Compiler::new(folder.path().to_owned(), (8, 0), 13_000);
        let (path, cubin) = (folder.path().join("decode.cubin"), vec![7; 100_000]);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        compiler.keep(&path, &cubin).expect("writable");
                        let kept = fs::read(&path).expect("is there");
                        assert!(checked(kept).is_some_and(|kept| kept == cubin));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(folder.path()).expect("is there").count(), 1);
    }

    #[test]
    fn a_torn_cubin_is_compiled_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let compiler = Compiler::new(folder.path().to_owned(), (8, 0), 13_000);
        let text = "extern \"C\" __global__ void nothing() {}";
        let path = folder.path().join(compiler.file_name("decode.cu", text));
        compiler.keep(&path, b"a whole cubin").expect("writable");
        assert_eq!(compiler.cubin_of("decode.cu", text).as_deref(), Ok(&b"a whole cubin"[..]));
        let whole = fs::read(&path).expect("is there");
        let mut damaged = whole.clone();
        damaged[3] ^= 1;
        for kept in [&whole[..0], &whole[..whole.len() / 2], &damaged[..]] {
            fs::write(&path, kept).expect("writable");
            match compiler.cubin_of("decode.cu", text) {
                Ok(cubin) => assert_eq!(cubin[..4], *b"\x7fELF"),
                Err(error) => assert_eq!(error, DeviceError::NoCompiler),
            }
        }
    }
}
