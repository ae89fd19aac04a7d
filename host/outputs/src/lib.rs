//! Safe output files. Outputs are complete or absent ([`temporary`], [`place`]), and replace
//! neither an input nor another output of their command ([`Roles`]), nor a protected file or
//! another user's ([`destination`]). Folders with guessable names are entered without following
//! links ([`OwnFolder`]). [`terminal_width`] is for those that go to a terminal.
//!
//! ```
//! use tilewright_outputs::Roles;
//!
//! let folder = tempfile::tempdir()?;
//! let latent = folder.path().join("cat.latent");
//! std::fs::write(&latent, "")?;
//! let roles = Roles::new().reads("the latent", &latent).writes("-o", &latent);
//! let refused = roles.check().unwrap_err().to_string();
//! assert!(refused.ends_with("cat.latent: is the latent, which is read: give -o another name"));
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

mod destination;
mod own_folder;
mod roles;
mod terminal;
mod whole;

pub use destination::{OutputRefused, destination, is_standard_output, stream};
pub use own_folder::OwnFolder;
pub use roles::Roles;
pub use terminal::terminal_width;
pub use whole::{folder_of, place, place_new, stage, temporary, temporary_folder, temporary_in, write_whole};
