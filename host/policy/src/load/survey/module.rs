//! A module or component that is being surveyed: the types, functions and instances known so far.

use wasmparser::{
    BlockType, ComponentInstance, ComponentTypeRef, CompositeInnerType, ContType, Encoding, FrameKind, FuncType,
    ModuleArity, Payload, RefType, SubType, TypeRef,
};

use crate::load::words;

/// A module or component that is being read.
pub(super) struct Module {
    encoding: Encoding,
    /// Instances that it makes, with all that they make in turn.
    pub instances: usize,
    /// The most parameters and results of one type.
    pub width: usize,
    types: Vec<SubType>,
    /// The type of each function, the imported ones first.
    functions: Vec<u32>,
    imported: usize,
    bodies: usize,
    /// Blocks that are open in the function that is being read.
    pub frames: Vec<(BlockType, FrameKind)>,
}

impl Module {
    pub fn new(encoding: Encoding) -> Self {
        Self {
            encoding,
            instances: 0,
            width: 0,
            types: Vec::new(),
            functions: Vec::new(),
            imported: 0,
            bodies: 0,
            frames: Vec::new(),
        }
    }

    pub fn is_component(&self) -> bool {
        self.encoding == Encoding::Component
    }

    /// `crowd`: the most instances, itself included, that any component read so far makes.
    pub fn read(&mut self, payload: &Payload<'_>, crowd: usize) -> Result<(), String> {
        match payload {
            // Components may hold each other many times over: each instance counts with all that it
            // makes.
            Payload::ComponentInstanceSection(section) => {
                for instance in section.clone() {
                    let made = matches!(instance.map_err(words)?, ComponentInstance::Instantiate { .. });
                    self.instances = self.instances.saturating_add(if made { crowd } else { 1 });
                }
            }
            Payload::InstanceSection(section) => {
                for instance in section.clone() {
                    instance.map_err(words)?;
                    self.instances = self.instances.saturating_add(1);
                }
            }
            Payload::ComponentImportSection(section) => {
                for import in section.clone() {
                    // The number of instances that an imported one makes can't be known here.
                    if let ComponentTypeRef::Component(_) | ComponentTypeRef::Module(_) = import.map_err(words)?.ty {
                        return Err("it imports a component or a module, which no policy needs".into());
                    }
                }
            }
            Payload::TypeSection(section) => {
                for group in section.clone() {
                    for ty in group.map_err(words)?.into_types() {
                        if let CompositeInnerType::Func(ty) = &ty.composite_type.inner {
                            self.width = self.width.max(ty.params().len() + ty.results().len());
                        }
                        self.types.push(ty);
                    }
                }
            }
            Payload::ImportSection(section) => {
                for import in section.clone().into_imports() {
                    if let TypeRef::Func(ty) = import.map_err(words)?.ty {
                        self.functions.push(ty);
                        self.imported += 1;
                    }
                }
            }
            Payload::FunctionSection(section) => {
                for ty in section.clone() {
                    self.functions.push(ty.map_err(words)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The type of the next function that has a body.
    pub fn next_function(&mut self) -> Option<u32> {
        let ty = self.functions.get(self.imported + self.bodies).copied();
        self.bodies += 1;
        ty
    }

    /// Parameters and results of a type; (0, 0) if it is not a function's.
    pub fn arity(&self, ty: u32) -> (usize, usize) {
        let arity = self.sub_type_at(ty).and_then(|ty| self.sub_type_arity(ty));
        arity.map_or((0, 0), |(params, results)| (params as usize, results as usize))
    }
}

impl ModuleArity for Module {
    fn sub_type_at(&self, type_idx: u32) -> Option<&SubType> {
        self.types.get(type_idx as usize)
    }

    fn tag_type_arity(&self, _at: u32) -> Option<(u32, u32)> {
        None
    }

    fn type_index_of_function(&self, function_idx: u32) -> Option<u32> {
        self.functions.get(function_idx as usize).copied()
    }

    fn func_type_of_cont_type(&self, _c: &ContType) -> Option<&FuncType> {
        None
    }

    fn sub_type_of_ref_type(&self, _rt: &RefType) -> Option<&SubType> {
        None
    }

    fn control_stack_height(&self) -> u32 {
        self.frames.len() as u32
    }

    fn label_block(&self, depth: u32) -> Option<(BlockType, FrameKind)> {
        self.frames.len().checked_sub(1 + depth as usize).map(|at| self.frames[at])
    }
}
