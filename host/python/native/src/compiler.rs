//! Compilation of policies in a process of its own: the interpreter, which loads this module and
//! does nothing else. It has none of the program's modules, and heeds none of Python's variables.

use std::{ffi::OsString, path::PathBuf};

use pyo3::{exceptions::PyOSError, prelude::*, types::PyModule};

/// Loads this module, by its path, and serves one compilation.
const SCRIPT: &str = "\
import importlib.machinery, importlib.util, sys
loader = importlib.machinery.ExtensionFileLoader('_native', sys.argv[1])
module = importlib.util.module_from_spec(importlib.util.spec_from_loader('_native', loader))
loader.exec_module(module)
module.serve_compilation(int(sys.argv[2]), int(sys.argv[3]))
";

/// Names the command by which policies are compiled. Without one, none is: the running program is
/// somebody else's, and must not be started again.
pub fn name_command(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let sys = module.py().import("sys")?;
    let interpreter: Option<PathBuf> = sys.getattr("executable")?.extract()?;
    // A frozen program's sys.executable is the program itself.
    let is_frozen = sys.getattr_opt("frozen")?.map(|frozen| frozen.is_truthy()).transpose()?.unwrap_or(false);
    // A module that was loaded to compile starts no child.
    let file = module.getattr_opt("__file__")?.map(|file| file.extract::<OsString>()).transpose()?;
    let interpreter = interpreter.filter(|interpreter| !interpreter.as_os_str().is_empty());
    match (interpreter, file) {
        _ if is_frozen => tilewright_policy::compile_nowhere(
            "the program is frozen (sys.frozen) and has no interpreter to start: use a policy that ships".into(),
        ),
        (Some(interpreter), Some(file)) => {
            // Isolated: neither the folder at hand nor the user's environment has a say.
            let arguments = ["-I", "-S", "-c", SCRIPT].map(OsString::from).into_iter().chain([file]);
            tilewright_policy::compile_by(interpreter, arguments.collect());
        }
        (None, _) => tilewright_policy::compile_nowhere(
            "sys.executable names no interpreter to start: set it before tilewright is imported, or use a policy that ships"
                .into(),
        ),
        (_, None) => tilewright_policy::compile_nowhere(
            "the native module has no file that an interpreter could load: install the wheel, or use a policy that ships"
                .into(),
        ),
    }
    Ok(())
}

/// Reads a policy's module from standard input and writes its code to standard output, under limits
/// of memory in bytes and of processor time in seconds.
#[pyfunction]
pub fn serve_compilation(py: Python<'_>, memory_bytes: u64, cpu_seconds: u64) -> PyResult<()> {
    py.detach(|| tilewright_policy::serve_compilation([memory_bytes, cpu_seconds]))
        .map_err(|error| PyOSError::new_err(error.to_string()))
}
