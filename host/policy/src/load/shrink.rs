//! Removes sections that execution doesn't need from a module or component: custom sections (names,
//! producers, debugging information), also in the modules and components inside.

/// Bytes before the first section.
const HEADER: usize = 8;

/// Section numbers: custom, and in components, those that hold a module or a component.
const CUSTOM: u8 = 0;
const NESTED: [u8; 2] = [1, 4];

/// The version field of a core module; anything else is taken for a component.
const MODULE: [u8; 4] = [1, 0, 0, 0];

/// The same module or component without custom sections; unchanged if it is damaged, which loading
/// it will report.
pub fn shrink(wasm: &[u8]) -> Vec<u8> {
    strip(wasm).unwrap_or_else(|| wasm.to_vec())
}

/// The same; none for a damaged one, such as one that ends within a section.
pub(super) fn strip(wasm: &[u8]) -> Option<Vec<u8>> {
    let (header, mut rest) = wasm.split_at_checked(HEADER)?;
    let is_component = header[4..] != MODULE;
    let mut kept = header.to_vec();
    while let Some((&id, after)) = rest.split_first() {
        let (length, after) = leb(after)?;
        let (contents, after) = after.split_at_checked(length)?;
        rest = after;
        if id == CUSTOM {
            continue;
        }
        kept.push(id);
        if is_component && NESTED.contains(&id) {
            let inner = strip(contents)?;
            put_leb(&mut kept, inner.len());
            kept.extend(inner);
        } else {
            put_leb(&mut kept, length);
            kept.extend(contents);
        }
    }
    Some(kept)
}

/// A number in LEB128, and the bytes after it.
fn leb(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        value |= usize::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

fn put_leb(to: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        to.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn custom_sections_go_at_every_depth() {
        let module = "(module $named (func $f (export \"f\")) (@custom \"extra\" \"words\"))";
        let inner = wat::parse_str(module).unwrap();
        let component = format!(
            "(component {} (component $c {}))",
            module.replace("(module", "(core module"),
            module.replace("(module", "(core module")
        );
        let outer = wat::parse_str(component).unwrap();
        let words = |bytes: &[u8]| {
            [&b"extra"[..], b"named", b"name"]
                .iter()
                .filter(|word| bytes.windows(word.len()).any(|at| at == **word))
                .count()
        };
        for wasm in [inner, outer] {
            let small = shrink(&wasm);
            assert!(words(&wasm) > 0 && words(&small) == 0 && small.len() < wasm.len());
            wasmparser::Validator::new().validate_all(&small).unwrap();
            assert_eq!(shrink(&small), small);
        }
    }

    #[test]
    fn damaged_bytes_are_left_alone() {
        let module = wat::parse_str("(module (func $f) (memory 1))").unwrap();
        for end in 0..module.len() {
            let cut = &module[..end];
            let kept = shrink(cut);
            assert!(kept == cut || end >= HEADER, "{end}");
        }
        assert_eq!(shrink(b"\0asm\x01\0\0\0\x01\xff\xff\xff\xff\xff"), b"\0asm\x01\0\0\0\x01\xff\xff\xff\xff\xff");
    }
}
