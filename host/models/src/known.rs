//! A file's tensors by the names that the network knows them by.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};
use tilewright_nn::{Source, Torch};

use crate::{
    Checkpoint, Error, Identity, Kind as FileKind, Result, checkpoint::computable, error::Shape, names::Names,
};

pub(crate) use tilewright_nn::Needed;

/// A file's tensors by the names that its layout's rules give them.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    pub file: &'a Checkpoint,
    pub rules: Names,
    prefix: &'a str,
    /// diffusers' name to the file's.
    names: BTreeMap<String, &'a str>,
}

impl<'a> Known<'a> {
    /// The tensors of a file that holds an autoencoder of this kind.
    ///
    /// # Errors
    /// [`Error::Unknown`] if it holds none.
    pub fn of(file: &'a Checkpoint, identity: &'a Identity, kind: FileKind) -> Result<Self> {
        let Some(naming) = identity.naming.filter(|_| identity.kind == kind) else {
            let reason = match (kind, identity.kind) {
                (FileKind::KlAutoencoder, FileKind::VideoAutoencoder) => {
                    format!("a {} video autoencoder, where one of pictures is expected", identity.family)
                }
                (FileKind::KlAutoencoder, _) => "no KL autoencoder".into(),
                _ => "no video autoencoder".into(),
            };
            return Err(Error::Unknown { path: file.path().to_owned(), reason });
        };
        let prefix = identity.prefix.as_str();
        let within = file.names().filter_map(|name| Some((name, name.strip_prefix(prefix)?)));
        let rules = Names::of(naming, within.clone().map(|(_, rest)| rest));
        let names = within.filter_map(|(name, rest)| Some((rules.canonical(rest)?, name))).collect();
        Ok(Self { file, rules, prefix, names })
    }

    /// Some tensor's name starts with these segments.
    pub fn has(&self, start: &str) -> bool {
        let first = self.names.range(format!("{start}.")..).next();
        first.is_some_and(|(name, _)| name.strip_prefix(start).is_some_and(|rest| rest.starts_with('.')))
    }

    /// The file's names of the tensors in a part of the network, in which diffusers' names begin so;
    /// those that the network has no place for are among them.
    pub fn part(&self, starts: &[&str]) -> impl Iterator<Item = &'a str> {
        let starts: Vec<String> = starts
            .iter()
            .map(|start| {
                self.rules
                    .original(&format!("{start}weight"))
                    .map_or((*start).to_owned(), |name| name.trim_end_matches("weight").to_owned())
            })
            .collect();
        let within = move |name: &&str| {
            name.strip_prefix(self.prefix).is_some_and(|rest| starts.iter().any(|start| rest.starts_with(start)))
        };
        self.file.names().filter(within)
    }

    /// The file's names in a part of the network that no tensor that is needed has. If `needed` isn't
    /// known, those that the table lacks.
    pub fn left_over(&self, starts: &[&str], needed: Option<&[Needed]>) -> Vec<String> {
        let mut left: Vec<String> = self.part(starts).map(str::to_owned).collect();
        left.retain(|name| match self.rules.canonical(&name[self.prefix.len()..]) {
            None => true,
            Some(name) => needed.is_some_and(|needed| !needed.iter().any(|needed| needed.name == name)),
        });
        left
    }

    /// The count of numbers in a row, from 0, that stand between `start` and the rest of some name.
    pub fn count(&self, start: &str) -> usize {
        (0..).take_while(|number| self.has(&format!("{start}.{number}"))).count()
    }

    /// The extent that most of these tensors have along the given axis, so that one misshapen tensor
    /// is the one that is blamed.
    pub fn extent<N: AsRef<str>>(&self, candidates: impl IntoIterator<Item = (N, usize)>) -> Option<usize> {
        let mut votes: Vec<(usize, usize)> = Vec::new();
        for (name, axis) in candidates {
            let shape = self.names.get(name.as_ref()).and_then(|name| self.file.shape(name));
            let Some(extent) = shape.and_then(|shape| shape.get(axis)) else { continue };
            match votes.iter_mut().find(|(value, _)| value == extent) {
                Some((_, count)) => *count += 1,
                None => votes.push((*extent, 1)),
            }
        }
        let most = votes.iter().map(|(_, count)| *count).max()?;
        votes.into_iter().find(|(_, count)| *count == most).map(|(value, _)| value)
    }

    /// The file's name of a needed tensor and its shape there, or what is wrong with it.
    ///
    /// # Errors
    /// [`Error::Missing`] and [`Error::Shape`], with the file's own name.
    pub fn locate(&self, needed: &Needed) -> Result<(&'a str, &'a [usize])> {
        let Some(name) = self.names.get(&needed.name) else {
            return Err(self.missing(&needed.name, &needed.shapes[0]));
        };
        let found = self.file.shape(name).unwrap_or_default();
        if !needed.shapes.iter().any(|shape| shape == found) {
            return Err(Error::Shape {
                path: self.file.path().to_owned(),
                name: (*name).to_owned(),
                found: Shape(found.to_vec()),
                expected: Shape(needed.shapes[0].clone()),
            });
        }
        Ok((name, found))
    }

    /// Checks that every tensor that is needed is there, in its shape and in a type that can be
    /// computed from.
    ///
    /// # Errors
    /// As [`Self::locate`], and [`Error::Stored`].
    pub fn all_loadable(&self, needed: &[Needed]) -> Result<()> {
        for needed in needed {
            let (name, _) = self.locate(needed)?;
            if let Some(found) = self.file.stored(name).filter(|stored| computable(*stored).is_none()) {
                let path = self.file.path().to_owned();
                return Err(Error::Stored { path, name: name.to_owned(), found: format!("{found:?}") });
            }
        }
        Ok(())
    }

    /// The file's names of needed tensors whose type can't be computed from.
    pub fn uncomputable(&self, needed: &[Needed]) -> Vec<String> {
        let names = needed.iter().filter_map(|needed| self.names.get(&needed.name));
        let unreadable = |name: &&&str| self.file.stored(name).is_some_and(|stored| computable(stored).is_none());
        names.filter(unreadable).map(|name| (*name).to_owned()).collect()
    }

    /// The faults of the tensors that are needed, a line each.
    pub fn problems(&self, needed: &[Needed]) -> Vec<String> {
        needed.iter().filter_map(|needed| self.locate(needed).err()).map(|error| error.to_string()).collect()
    }

    /// A tensor is not there: the error has the name that the file would give it.
    pub fn missing(&self, canonical: &str, expected: &[usize]) -> Error {
        let name = self.rules.original(canonical).unwrap_or_else(|| canonical.to_owned());
        Error::Missing {
            path: self.file.path().to_owned(),
            name: format!("{}{name}", self.prefix),
            expected: Shape(expected.to_vec()),
        }
    }
}

/// A network's part of a file, beside the weights that the network needs.
#[derive(Debug)]
pub(crate) struct Weights<'a> {
    known: Known<'a>,
    needed: Vec<Needed>,
    /// The beginnings of the network's own names of the tensors in this part.
    starts: &'static [&'static str],
    /// The network as errors call it.
    network: &'static str,
}

impl<'a> Weights<'a> {
    pub fn new(known: Known<'a>, needed: Vec<Needed>, starts: &'static [&'static str], network: &'static str) -> Self {
        Self { known, needed, starts, network }
    }

    /// The file's names in this part that the network has no place for.
    pub fn left_over(&self) -> Vec<String> {
        self.known.left_over(self.starts, Some(&self.needed))
    }

    /// Checks, before anything is decided or loaded, that the weights can be loaded.
    ///
    /// # Errors
    /// A tensor is missing, misshapen, left over, or of a type that can't be computed from.
    pub fn check(&self) -> Result<()> {
        Error::refuse_left_over(self.known.file.path(), self.network, &self.left_over())?;
        self.known.all_loadable(&self.needed)
    }

    /// Tensors that are needed and whose type can't be computed from.
    pub fn uncomputable(&self) -> Vec<String> {
        self.known.uncomputable(&self.needed)
    }

    /// The reasons why the network can't be loaded, a line each.
    pub fn problems(&self) -> Vec<String> {
        self.known.problems(&self.needed)
    }

    /// The weights as a network on a device asks for them.
    pub fn on(&self, device: Device) -> OnDevice<'_, 'a> {
        OnDevice { known: &self.known, device }
    }
}

/// Weights of a file, each copied to a device when it is asked for.
#[derive(Debug)]
pub(crate) struct OnDevice<'w, 'a> {
    known: &'w Known<'a>,
    device: Device,
}

impl Source<Torch> for OnDevice<'_, '_> {
    fn weight(&self, name: &str, shapes: &[&[i64]], kind: Kind) -> tilewright_nn::Result<Tensor> {
        let extents = |shape: &&[i64]| shape.iter().map(|&extent| extent as usize).collect();
        let needed = Needed { name: name.to_owned(), shapes: shapes.iter().map(extents).collect() };
        let (name, found) = self.known.locate(&needed)?;
        let tensor = self.known.file.load(name, found, kind, self.device)?;
        Ok(if found == needed.shapes[0] { tensor } else { tensor.f_reshape(shapes[0])? })
    }
}
