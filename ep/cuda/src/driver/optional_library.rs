//! Optional libraries, looked for before cudarc does, which panics if it does not find them.

use std::error::Error as _;

use libloading::Library;

/// Loads a library by the first of these names that works. It stays loaded, so that a later search by the same names finds it.
///
/// # Errors
/// The loader's message for a file that exists and cannot be loaded; `None` if no file exists.
pub(crate) fn find(names: &[String]) -> Result<String, Option<String>> {
    let mut reason = None;
    for name in names {
        // SAFETY: loading may run the initialisers of the library with this name, which is the purpose of the call.
        match unsafe { Library::new(name) } {
            Ok(library) => {
                std::mem::forget(library);
                return Ok(name.clone());
            }
            Err(error) => {
                // The message of the loader is the source of the error. One about a file that exists is more useful than one about a
                // missing file.
                let text = error.source().map_or_else(|| error.to_string(), |source| source.to_string());
                if reason.is_none() && !text.contains("No such file") {
                    reason = Some(text.lines().collect::<Vec<_>>().join(" "));
                }
            }
        }
    }
    Err(reason)
}

/// The first of these functions that the library lacks.
pub(crate) fn missing(library: &Library, functions: &[&'static str]) -> Option<&'static str> {
    functions.iter().copied().find(|function| {
        // SAFETY: the function is only looked up, not called.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) };
        found.is_err()
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn what_the_loader_says_of_a_broken_file_is_kept() {
        let folder = std::env::temp_dir().join(format!("streamvm-library-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (absent, broken) = (folder.join("absent.so"), folder.join("broken.so"));
        fs::write(&broken, "no library").unwrap();
        let name = |path: &Path| path.to_string_lossy().into_owned();
        assert_eq!(find(&[name(&absent)]), Err(None));
        let reason = find(&[name(&absent), name(&broken)]).unwrap_err().unwrap();
        assert!(reason.contains("broken.so") && reason.lines().count() == 1, "{reason}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_function_that_is_not_there_is_named() {
        // This very program.
        let own: Library = libloading::os::unix::Library::this().into();
        assert_eq!(missing(&own, &["malloc", "cuInit", "free"]), Some("cuInit"));
        assert_eq!(missing(&own, &["malloc", "free"]), None);
    }
}
