//! A network in a file: its architecture, its weights by the network's names, and the blocks that
//! they belong to.

#[cfg(feature = "torch")]
mod loaded;

use std::{fmt::Debug, ops::Deref};

use tilewright_checkpoint::Stored;
use tilewright_kernels::{Expansion, Scaling, expanded_rows, expanding_bytes};
use tilewright_nn::{ComputeFormat, Costs, Listing, Meter, Needed, TokenOps, TokenScope};
use tilewright_plan::Dtype;

#[cfg(feature = "torch")]
pub use self::loaded::LoadedNetwork;
use crate::{
    Result,
    transformer::{Residency, TransformerFile},
};

/// An architecture that is read off the shapes of weights.
pub trait NetworkConfig: Debug {
    /// The tables that the network's input is made of, which are read row by row and not loaded.
    fn tables(&self) -> Vec<Needed> {
        Vec::new()
    }

    /// The width of a head of attention.
    fn head_width(&self) -> i64;

    /// The beginnings of blocks' names, with the blocks of each, in the order of a pass.
    fn block_names(&self) -> Vec<(&'static str, usize)>;

    /// Blocks of a pass.
    fn blocks(&self) -> usize {
        self.block_names().iter().map(|(_, count)| count).sum()
    }
}

/// A table that a network's input is made of.
pub(crate) fn table(name: &str, shape: &[i64]) -> Needed {
    Needed { name: name.into(), shapes: vec![shape.iter().map(|extent| *extent as usize).collect()] }
}

/// The architecture of any network of a list.
pub trait AnyConfig: Clone + Debug + Deref<Target: NetworkConfig> {
    /// The network with its weights.
    type Network<O: TokenOps>: Debug + Send;

    /// Builds the network with the weights that a scope gives.
    ///
    /// # Errors
    /// A weight is missing or has other extents.
    fn build<O: TokenOps>(&self, scope: &TokenScope<'_, O>) -> Result<Self::Network<O>>;

    /// The weights that the network needs, without its tables.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    fn weights(&self) -> Result<Vec<Needed>> {
        let meter = Meter::new(ComputeFormat::single(), Costs::default());
        let listing = Listing::default();
        self.build(&TokenScope::new(&listing, &meter))?;
        Ok(listing.into_needed())
    }

    /// The weights that the network needs, and its tables.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    fn needed(&self) -> Result<Vec<Needed>> {
        Ok([self.weights()?, self.tables()].concat())
    }
}

/// Lists networks by their folders: the architecture of any of them, an [`AnyConfig`], and the
/// network.
macro_rules! networks {
    (
        $(#[$of_config:meta])* $Config:ident: $Architecture:ident,
        $(#[$of_network:meta])* $Network:ident,
        $($(#[$only:meta])* $Name:ident = $folder:ident),*
    ) => {
        $(#[$of_config])*
        #[derive(Clone, Debug, serde::Serialize)]
        #[serde(untagged)]
        #[expect(missing_docs, reason = "the folders' own pages say what they are")]
        pub enum $Config {
            $($(#[$only])* $Name($folder::Config)),*
        }

        impl std::ops::Deref for $Config {
            type Target = dyn $Architecture;

            fn deref(&self) -> &Self::Target {
                match self {
                    $($(#[$only])* Self::$Name(config) => config),*
                }
            }
        }

        $(#[$of_network])*
        #[derive(Debug)]
        pub enum $Network<O: tilewright_nn::TokenOps> {
            $($(#[$only])* $Name($folder::Network<O>)),*
        }

        impl $crate::network_file::AnyConfig for $Config {
            type Network<O: tilewright_nn::TokenOps> = $Network<O>;

            fn build<O: tilewright_nn::TokenOps>(&self, scope: &tilewright_nn::TokenScope<'_, O>) -> Result<$Network<O>> {
                Ok(match self {
                    $($(#[$only])* Self::$Name(config) => $Network::$Name($folder::Network::build(config, scope)?)),*
                })
            }
        }
    };
}
pub(crate) use networks;

/// A network in a file.
#[derive(Debug)]
pub struct NetworkFile<C> {
    pub(crate) file: TransformerFile,
    /// The architecture.
    pub config: C,
    /// Elements of its weights; its tables are left out here and below.
    pub parameters: u64,
    /// Bytes of its weights as they are stored.
    pub stored_bytes: u64,
    /// The types that its weights are stored in, with their bytes, the most common first.
    pub stored_types: Vec<(Stored, u64)>,
    /// The file's tensors of each block.
    blocks: Vec<Vec<String>>,
    /// The most bytes held while the weights are expanded to each type.
    expanding: [(Dtype, u64); 3],
    /// Matrices are stored in FP8 (E4M3), with one scale for all values at most.
    has_fp8_products: bool,
}

impl<C: AnyConfig> NetworkFile<C> {
    /// A network of an architecture that was read off this file.
    pub(crate) fn new(file: TransformerFile, config: C) -> Result<Self> {
        let blocks = file.tensors_of_blocks(&config.needed()?, &config.block_names());
        let weights = config.weights()?;
        Ok(Self {
            parameters: weights.iter().map(elements).sum(),
            stored_bytes: file.stored_bytes(&weights),
            stored_types: file.stored_types(&weights),
            blocks,
            expanding: [Dtype::F32, Dtype::Bf16, Dtype::F16].map(|dtype| (dtype, expanding(&file, &weights, dtype))),
            has_fp8_products: has_fp8_products(&file, &weights),
            file,
            config,
        })
    }

    /// The same network without the changes of LoRAs. Both share the file.
    #[must_use]
    pub fn without_loras(&self) -> Self {
        Self {
            file: self.file.without_loras(),
            config: self.config.clone(),
            stored_types: self.stored_types.clone(),
            blocks: self.blocks.clone(),
            ..*self
        }
    }

    /// The file, and the names in it.
    pub fn file(&self) -> &TransformerFile {
        &self.file
    }

    /// The type that most of its bytes are stored in.
    pub fn stored(&self) -> Stored {
        self.stored_types.first().map_or(Stored::F32, |(stored, _)| *stored)
    }

    /// True if most of its bytes are stored in a type that products can't take as it is.
    pub fn is_quantized(&self) -> bool {
        self.stored().is_quantized()
    }

    /// Bytes that the network's weights take beside their mapped file: vectors in f32, LoRAs, and
    /// matrices, as stored or expanded, unless they are mapped or streamed block by block.
    ///
    /// # Errors
    /// Never: nothing is loaded.
    pub fn resident_bytes(&self, format: ComputeFormat, residency: Residency) -> Result<u64> {
        let width = format.product_dtype.bytes();
        let bytes = |needed: &Needed| match (needed.shapes[0].len(), residency) {
            (2, Residency::Mapped) => 0,
            (2, Residency::Streamed) if self.is_of_a_block(needed) => 0,
            (2, Residency::Packed | Residency::Streamed) => self.file.stored_bytes(std::slice::from_ref(needed)),
            (2, Residency::Expanded) => elements(needed) * width,
            _ => elements(needed) * 4,
        };
        let changes = self.file.changes().elements() * width;
        Ok(self.config.weights()?.iter().map(bytes).sum::<u64>() + changes)
    }

    /// The most bytes that a device holds beside the weights while it expands them to a type: a
    /// matrix as it is stored, and the rows of it that are expanded at once.
    pub fn expanding_bytes(&self, dtype: Dtype) -> u64 {
        self.expanding.iter().find(|(of, _)| *of == dtype).map_or(0, |(_, bytes)| *bytes)
    }

    /// True if some matrices can be multiplied in FP8 as they are stored. Those with a scale for
    /// each row, or for groups of values, have to be expanded.
    pub const fn has_fp8_products(&self) -> bool {
        self.has_fp8_products
    }

    fn is_of_a_block(&self, needed: &Needed) -> bool {
        let (parts, _) = self.file.stored_names(&needed.name);
        self.blocks.iter().any(|block| parts.iter().any(|part| block.contains(part)))
    }

    /// Bytes of each block as they are stored.
    pub fn block_bytes(&self) -> Vec<u64> {
        let bytes = |name: &String| self.file.file().bytes(name).map_or(0, |bytes| bytes.len() as u64);
        self.blocks.iter().map(|block| block.iter().map(bytes).sum()).collect()
    }

    /// Asks the system to read a block's weights ahead of their use.
    pub fn read_ahead(&self, block: usize) {
        self.blocks.get(block).into_iter().flatten().for_each(|name| self.file.file().read_ahead(name));
    }

    /// Gives the memory of a block's mapped weights back.
    pub fn give_back(&self, block: usize) {
        self.blocks.get(block).into_iter().flatten().for_each(|name| self.file.file().give_back(name));
    }
}

/// The most bytes of [`NetworkFile::expanding_bytes`].
fn expanding(network: &TransformerFile, weights: &[Needed], dtype: Dtype) -> u64 {
    let file = network.file();
    let of = |part: &String| {
        let (stored, scaling) = file.stored_matrix(part)?;
        let [rows, columns] = <[usize; 2]>::try_from(file.matrix_shape(part)?).ok()?;
        if Expansion::of(stored, scaling, dtype) == Expansion::default() {
            return None;
        }
        let at_once = expanded_rows(columns as i64, dtype).min(rows as i64) as u64;
        Some(stored.bytes(&[rows, columns])? as u64 + expanding_bytes(at_once * columns as u64, dtype))
    };
    let of_all = |needed: &Needed| network.stored_names(&needed.name).0.iter().filter_map(of).max();
    weights.iter().filter_map(of_all).max().unwrap_or_default()
}

/// The fact of [`NetworkFile::has_fp8_products`].
fn has_fp8_products(network: &TransformerFile, weights: &[Needed]) -> bool {
    let is_one = |part: &String| {
        let stored = network.file().stored_matrix(part);
        stored.is_some_and(|(stored, scaling)| stored == Stored::F8E4m3 && scaling != Scaling::Several)
    };
    weights.iter().any(|needed| network.stored_names(&needed.name).0.iter().any(is_one))
}

fn elements(needed: &Needed) -> u64 {
    needed.shapes[0].iter().product::<usize>() as u64
}
