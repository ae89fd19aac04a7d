//! The names that a pickle of tensors may use.

use tilewright_kernels::Stored;

/// A function that values are made by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// A tensor of a typed storage.
    Tensor,
    /// A tensor of bytes, and its type.
    TensorOfType,
    /// A tensor that another function made.
    Parameter,
    /// A tensor with attributes, by another function.
    FromType,
    Dict,
    /// A tuple of extents.
    Size,
    /// A set, or a list.
    List,
    /// A value that no tensor is made of.
    Other,
}

/// A name's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Function(Function),
    /// A storage of a type; without one, of bytes.
    Storage(Option<Stored>),
    Type(Stored),
    /// A class that is named, and never called.
    Class,
}

use Known::{Class, Storage, Type};

/// Characters of a name that a message shows.
const LONGEST_SHOWN: usize = 120;

const fn function(function: Function) -> Known {
    Known::Function(function)
}

/// A module, a name in it, and its meaning. Python 2 calls `builtins` otherwise.
const KNOWN: [(&str, &str, Known); 60] = [
    ("torch._utils", "_rebuild_tensor", function(Function::Tensor)),
    ("torch._utils", "_rebuild_tensor_v2", function(Function::Tensor)),
    ("torch._utils", "_rebuild_tensor_v3", function(Function::TensorOfType)),
    ("torch._utils", "_rebuild_parameter", function(Function::Parameter)),
    ("torch._utils", "_rebuild_parameter_with_state", function(Function::Parameter)),
    ("torch._tensor", "_rebuild_from_type_v2", function(Function::FromType)),
    ("collections", "OrderedDict", function(Function::Dict)),
    ("torch", "Size", function(Function::Size)),
    ("builtins", "set", function(Function::List)),
    ("__builtin__", "set", function(Function::List)),
    ("torch", "device", function(Function::Other)),
    ("_codecs", "encode", function(Function::Other)),
    ("builtins", "bytearray", function(Function::Other)),
    ("__builtin__", "bytearray", function(Function::Other)),
    // PyTorch Lightning's files name the class whose facts they keep beside the weights, and have
    // numbers of NumPy among them.
    ("pytorch_lightning.callbacks.model_checkpoint", "ModelCheckpoint", Class),
    ("lightning.pytorch.callbacks.model_checkpoint", "ModelCheckpoint", Class),
    ("numpy.core.multiarray", "scalar", function(Function::Other)),
    ("numpy._core.multiarray", "scalar", function(Function::Other)),
    ("numpy", "dtype", function(Function::Other)),
    ("numpy.dtypes", "Float64DType", function(Function::Other)),
    ("torch", "Tensor", Class),
    ("torch.nn.parameter", "Parameter", Class),
    ("torch", "FloatStorage", Storage(Some(Stored::F32))),
    ("torch", "DoubleStorage", Storage(Some(Stored::F64))),
    ("torch", "HalfStorage", Storage(Some(Stored::F16))),
    ("torch", "BFloat16Storage", Storage(Some(Stored::Bf16))),
    ("torch", "LongStorage", Storage(Some(Stored::I64))),
    ("torch", "IntStorage", Storage(Some(Stored::I32))),
    ("torch", "ShortStorage", Storage(Some(Stored::I16))),
    ("torch", "CharStorage", Storage(Some(Stored::I8))),
    ("torch", "ByteStorage", Storage(Some(Stored::U8))),
    ("torch", "BoolStorage", Storage(Some(Stored::Bool))),
    ("torch", "ComplexFloatStorage", Storage(Some(Stored::C64))),
    ("torch", "UntypedStorage", Storage(None)),
    ("torch.storage", "UntypedStorage", Storage(None)),
    ("torch", "float32", Type(Stored::F32)),
    ("torch", "float", Type(Stored::F32)),
    ("torch", "float64", Type(Stored::F64)),
    ("torch", "double", Type(Stored::F64)),
    ("torch", "float16", Type(Stored::F16)),
    ("torch", "half", Type(Stored::F16)),
    ("torch", "bfloat16", Type(Stored::Bf16)),
    ("torch", "float8_e4m3fn", Type(Stored::F8E4m3)),
    ("torch", "float8_e5m2", Type(Stored::F8E5m2)),
    ("torch", "float8_e8m0fnu", Type(Stored::F8E8m0)),
    ("torch", "float8_e4m3fnuz", Type(Stored::F8E4m3fnuz)),
    ("torch", "float8_e5m2fnuz", Type(Stored::F8E5m2fnuz)),
    ("torch", "int64", Type(Stored::I64)),
    ("torch", "long", Type(Stored::I64)),
    ("torch", "int32", Type(Stored::I32)),
    ("torch", "int", Type(Stored::I32)),
    ("torch", "int16", Type(Stored::I16)),
    ("torch", "short", Type(Stored::I16)),
    ("torch", "int8", Type(Stored::I8)),
    ("torch", "uint8", Type(Stored::U8)),
    ("torch", "uint16", Type(Stored::U16)),
    ("torch", "uint32", Type(Stored::U32)),
    ("torch", "uint64", Type(Stored::U64)),
    ("torch", "bool", Type(Stored::Bool)),
    ("torch", "complex64", Type(Stored::C64)),
];

impl Known {
    /// The meaning of a name in a module.
    ///
    /// # Errors
    /// The name is none of tensors' and of plain values'.
    pub fn find(module: &str, name: &str) -> Result<Self, String> {
        let row = KNOWN.iter().find(|(of, called, _)| *of == module && *called == name);
        row.map(|row| row.2).ok_or_else(|| {
            let whole: String = format!("{module}.{name}").escape_debug().take(LONGEST_SHOWN).collect();
            format!(
                "{whole} is not read: of a pickle only tensors, dicts, lists, texts and numbers are, and nothing in it is run; \
                 if you trust it, convert it with torch.load and safetensors.torch.save_file"
            )
        })
    }
}
