//! Tensors of an engine, from and to files.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use streamvm::{DType, Site, Tensor, Vm};

use crate::array::{Array, Data, each};
use crate::format::Format;
use crate::tensor_file::{TensorFile, open};
use crate::whole_file::WholeFile;
use crate::{Error, check_savable, npy, npz, safetensors};

/// Loads a tensor into host memory; `.to(device)` copies it to a device. A `.npy` file has one tensor, which has no name. In a `.npz` or
/// `.safetensors` file `name` says which tensor; it may be `None` if the file has only one. Blocks until the file is read.
///
/// # Errors
/// [`Error::NoTensor`] if there is no tensor of that name, or several and none is named; [`Error::Refused`] if the file is malformed,
/// truncated or too large, or its elements are of no dtype; [`Error::Io`]; [`Error::Engine`], such as out of memory.
#[track_caller]
pub fn load(vm: &Vm, path: impl AsRef<Path>, name: Option<&str>) -> Result<Tensor, Error> {
    of_caller(|| Ok(TensorFile::open(path.as_ref(), name)?.read()?.to_tensor(vm)?))
}

/// Loads all tensors of a `.npz` or `.safetensors` file into host memory, with their names, in the order of the file.
///
/// # Errors
/// Those of [`load`]; [`Error::Refused`] if the path is that of a `.npy` file.
#[track_caller]
pub fn load_all(vm: &Vm, path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>, Error> {
    let path = path.as_ref();
    of_caller(|| {
        let all = TensorFile::open_all(path)?;
        let (mut file, _) = open(path)?;
        all.into_iter().map(|(name, header)| Ok((name, header.read_from(&mut file)?.to_tensor(vm)?))).collect()
    })
}

/// Saves a tensor as a `.npy` file, row-major. Waits for the tensor, and copies it to the host. The file appears whole or not at all; a file
/// that was there is replaced.
///
/// # Errors
/// [`Error::Refused`] if the path does not end in `.npy` or leads to something other than a regular file, or the tensor is of `bf16`, which
/// `.npy` cannot hold; [`Error::Io`] if writing fails; [`Error::Engine`] if the tensor has failed.
#[track_caller]
pub fn save(path: impl AsRef<Path>, tensor: &Tensor) -> Result<(), Error> {
    of_caller(|| save_one(path.as_ref(), tensor))
}

fn save_one(path: &Path, tensor: &Tensor) -> Result<(), Error> {
    if Format::of(path) != Some(Format::Npy) {
        return Err(Error::refused(path, "`save` writes a .npy file, and `save_all` a .npz or .safetensors file"));
    }
    check_savable(tensor.dtype()).map_err(|reason| Error::refused(path, reason))?;
    let array = Array::from_tensor(tensor)?;
    write_whole(path, |temporary| buffered(path, temporary, |file| npy::write_npy(file, &array)))
}

/// Saves tensors with their names as a `.npz` file without compression, or as a `.safetensors` file. Waits for the tensors, and copies all of
/// them to the host before it begins to write. The file appears whole or not at all; a file that was there is replaced. A `.npz` file keeps
/// the order of `tensors`; a `.safetensors` file orders them by the size of their elements, and then by name.
///
/// # Errors
/// [`Error::Refused`] if the path does not end in `.npz` or `.safetensors` or leads to something other than a regular file, a name comes
/// twice or is one that the format cannot hold, or a tensor for `.npz` is of `bf16`; [`Error::Io`] if writing fails; [`Error::Engine`] if a tensor has
/// failed.
#[track_caller]
pub fn save_all(path: impl AsRef<Path>, tensors: &[(&str, &Tensor)]) -> Result<(), Error> {
    of_caller(|| save_named(path.as_ref(), tensors))
}

fn save_named(path: &Path, tensors: &[(&str, &Tensor)]) -> Result<(), Error> {
    let refuse = |reason: String| Err(Error::refused(path, reason));
    let is_npz = match Format::of(path) {
        Some(Format::Npz) => true,
        Some(Format::Safetensors) => false,
        _ => return refuse("`save_all` writes a .npz or .safetensors file, and `save` a .npy file".into()),
    };
    let mut names = HashSet::new();
    for (name, tensor) in tensors {
        if !names.insert(*name) {
            return refuse(format!("two tensors are called {name:?}"));
        }
        if name.len() > LONGEST_NAME {
            return refuse(format!("a name has {} bytes, at most {LONGEST_NAME} are written", name.len()));
        }
        if is_npz && tensor.dtype() == DType::BF16 {
            return refuse(format!(
                "tensor {name:?}: .npz has no name for bf16: save a .safetensors file, or `cast` it to f32"
            ));
        }
        if is_npz && name.contains('\0') {
            return refuse(format!("a name in a .npz file cannot contain a zero: {name:?}"));
        }
        if !is_npz && *name == "__metadata__" {
            return refuse("a .safetensors file has something else under the name \"__metadata__\"".into());
        }
    }
    let mut arrays = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        arrays.push((*name, Array::from_tensor(tensor)?));
    }
    let arrays = arrays.iter().map(|(name, array)| (*name, array));
    write_whole(path, |temporary| match is_npz {
        true => buffered(path, temporary, |file| npz::write(file, arrays)),
        false => safetensors::write(path, temporary, arrays),
    })
}

/// Makes the line of the caller that of all errors of `call`, its own and the engine's.
#[track_caller]
fn of_caller<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let site = Site::caller();
    let _here = site.enter();
    call().map_err(|error| error.called_from(site))
}

/// Longest name that is written, in bytes: the length of a member's name in a ZIP archive has 16 bits.
const LONGEST_NAME: usize = 60_000;

/// Puts a file at `path`, which `write` writes at the path that it gets.
fn write_whole(path: &Path, write: impl FnOnce(&Path) -> Result<(), Error>) -> Result<(), Error> {
    match path.metadata() {
        Ok(found) if found.is_dir() => {
            return Err(Error::refused(path, "this is a directory, expected a file to write"));
        }
        Ok(found) if !found.is_file() => return Err(Error::refused(path, "this is not a regular file")),
        _ => {}
    }
    let fail = |error: io::Error| Error::io(path, "write", error);
    let file = WholeFile::create(path).map_err(fail)?;
    write(file.temporary())?;
    file.finish().map_err(fail)
}

fn buffered(
    path: &Path,
    temporary: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> Result<(), Error> {
    let write = || {
        let mut file = BufWriter::new(File::options().write(true).open(temporary)?);
        write(&mut file)?;
        file.flush()
    };
    write().map_err(|error| Error::io(path, "write", error))
}

impl Array {
    /// A host tensor with these elements.
    ///
    /// # Errors
    /// Those of [`Vm::from_slice`].
    #[track_caller]
    pub fn to_tensor(&self, vm: &Vm) -> Result<Tensor, streamvm::Error> {
        each!(&self.data, values => vm.from_slice(values, &self.shape))
    }

    /// The elements of a tensor. Waits for it, and copies it to the host.
    ///
    /// # Errors
    /// The tensor has failed, or the engine is closed.
    #[track_caller]
    pub fn from_tensor(tensor: &Tensor) -> Result<Array, streamvm::Error> {
        let data = match tensor.dtype() {
            DType::F32 => Data::F32(tensor.to_vec()?),
            DType::F64 => Data::F64(tensor.to_vec()?),
            DType::F16 => Data::F16(tensor.to_vec()?),
            DType::BF16 => Data::BF16(tensor.to_vec()?),
            DType::I8 => Data::I8(tensor.to_vec()?),
            DType::I16 => Data::I16(tensor.to_vec()?),
            DType::I32 => Data::I32(tensor.to_vec()?),
            DType::I64 => Data::I64(tensor.to_vec()?),
            DType::U8 => Data::U8(tensor.to_vec()?),
            DType::U16 => Data::U16(tensor.to_vec()?),
            DType::U32 => Data::U32(tensor.to_vec()?),
            DType::U64 => Data::U64(tensor.to_vec()?),
            DType::Bool => Data::Bool(tensor.to_vec()?),
        };
        Ok(Array { shape: tensor.shape().dims().to_vec(), data })
    }
}
