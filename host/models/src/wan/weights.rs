//! The networks' weights by diffusers' names, from a file of any layout.

use tch::{Device, Kind, Tensor};

use super::{Config, EncoderConfig, config::known};
use crate::{
    Checkpoint, Error, Identity, Result,
    error::Shape,
    known::{Known, Needed},
    names::wan::Naming,
};

/// A network's part of a file, and what the network needs of it.
#[derive(Debug)]
pub(super) struct Weights<'a> {
    known: Known<'a, Naming>,
    needed: Vec<Needed>,
    left_over: Vec<String>,
    /// What an error calls it.
    network: &'static str,
}

impl<'a> Weights<'a> {
    /// The decoder's.
    ///
    /// # Errors
    /// Where the file is no video autoencoder.
    pub fn new(file: &'a Checkpoint, identity: &'a Identity, config: &Config) -> Result<Self> {
        let left_over = Config::left_over(file, identity);
        Ok(Self { known: known(file, identity)?, needed: config.needed(), left_over, network: "decoder" })
    }

    /// The encoder's.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn of_encoder(file: &'a Checkpoint, identity: &'a Identity, config: &EncoderConfig) -> Result<Self> {
        let left_over = EncoderConfig::left_over(file, identity);
        Ok(Self { known: known(file, identity)?, needed: config.needed(), left_over, network: "encoder" })
    }

    /// Compares all shapes and types, before any weight is copied.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, left over or of a type that can't be computed from, by the file's own name.
    pub fn all_present(&self) -> Result<()> {
        Error::refuse_left_over(self.known.file.path(), self.network, &self.left_over)?;
        self.known.all_loadable(&self.needed)
    }

    fn find(&self, name: &str) -> Option<&Needed> {
        // WAN 2.2's upsampler is the only one of its block too; diffusers numbers 2.1's alone.
        let name = name.replace(".upsampler.", ".upsamplers.0.");
        self.needed.iter().find(|needed| needed.name == name)
    }

    /// Loads a tensor by diffusers' name as `kind` on `device`, in a shape of as many elements as it has.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Shape`] and [`Error::Stored`] with the file's own name, libtorch's failures.
    pub fn load(&self, name: &str, shape: &[usize], kind: Kind, device: Device) -> Result<Tensor> {
        let needed = self.find(name).ok_or_else(|| self.known.missing(name, shape))?;
        let (name, found) = self.known.locate(needed)?;
        if found.iter().product::<usize>() != shape.iter().product::<usize>() {
            return Err(Error::Shape {
                path: self.known.file.path().to_owned(),
                name: name.to_owned(),
                found: Shape(found.to_vec()),
                expected: Shape(shape.to_vec()),
            });
        }
        let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        Ok(self.known.file.load(name, found, kind, device)?.f_reshape(extents)?)
    }
}
