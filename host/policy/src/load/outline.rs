//! The names in a policy's file, read before anything is compiled: a file that would be refused
//! anyway is refused at once, with a message that helps.

use wasmparser::{ComponentExternalKind, Instance, Parser, Payload, TypeRef};

use super::words;

/// The default size of a page of linear memory, in bytes, as a power of two.
const PAGE_LOG2: u32 = 16;

/// The names and sizes of a file's outermost module or component.
#[derive(Debug, Default)]
pub(crate) struct Outline<'a> {
    /// For a core module, the names of the modules that it imports from; for a component, those of
    /// its imports.
    pub imports: Vec<&'a str>,
    /// The names of its exports; for a component, those of instances only.
    pub exports: Vec<&'a str>,
    /// Core instances that a component makes itself.
    pub instances: usize,
    /// Initial bytes of the largest memory of any module within.
    pub memory_bytes: u64,
    /// True if a module within has more than one memory. The compiler panics over that if the
    /// feature is off, and it has to be on: wasmtime itself uses it to copy between a policy's
    /// components.
    pub several_memories: bool,
}

impl<'a> Outline<'a> {
    /// Reads the sections of a file.
    ///
    /// # Errors
    /// The parser's message if the file is damaged.
    pub fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut outline = Self::default();
        // The number of memories of each open module or component, the outermost first.
        let mut memories: Vec<u32> = Vec::new();
        for payload in Parser::new(0).parse_all(bytes) {
            let payload = payload.map_err(words)?;
            let mut found = 0;
            match &payload {
                Payload::Version { .. } => memories.push(0),
                Payload::End(_) => drop(memories.pop()),
                Payload::MemorySection(section) => {
                    found = section.count();
                    for memory in section.clone() {
                        let memory = memory.map_err(words)?;
                        let page = 1 << memory.page_size_log2.unwrap_or(PAGE_LOG2).min(PAGE_LOG2);
                        outline.memory_bytes = outline.memory_bytes.max(memory.initial.saturating_mul(page));
                    }
                }
                Payload::ImportSection(section) => {
                    for import in section.clone().into_imports() {
                        let import = import.map_err(words)?;
                        found += u32::from(matches!(import.ty, TypeRef::Memory(_)));
                        if memories.len() == 1 {
                            outline.imports.push(import.module);
                        }
                    }
                }
                outer if memories.len() == 1 => outline.outermost(outer)?,
                _ => {}
            }
            if let Some(memories) = memories.last_mut() {
                *memories = memories.saturating_add(found);
                outline.several_memories |= *memories > 1;
            }
        }
        Ok(outline)
    }

    fn outermost(&mut self, payload: &Payload<'a>) -> Result<(), String> {
        match payload {
            Payload::ExportSection(section) => {
                for export in section.clone() {
                    self.exports.push(export.map_err(words)?.name);
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section.clone() {
                    self.imports.push(import.map_err(words)?.name.name);
                }
            }
            Payload::ComponentExportSection(section) => {
                for export in section.clone() {
                    let export = export.map_err(words)?;
                    if export.kind == ComponentExternalKind::Instance {
                        self.exports.push(export.name.name);
                    }
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section.clone() {
                    let is_made = matches!(instance.map_err(words)?, Instance::Instantiate { .. });
                    self.instances += usize::from(is_made);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
