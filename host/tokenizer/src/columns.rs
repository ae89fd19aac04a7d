//! Restores a sentencepiece model from its columns, which compress better than its protobuf:
//! `vocabularies/columns.py` describes them.

/// The bits of a varint's byte that are the number's, and the one that says that more follow.
const BITS: usize = 0x7f;
const MORE: u8 = 0x80;

/// The `spiece.model` of these columns, byte for byte; `None` if they are cut off.
pub(crate) fn restore(columns: &[u8]) -> Option<Vec<u8>> {
    let mut rest = columns;
    let count = number(&mut rest)?;
    let kinds = number(&mut rest)?;
    let mut texts = Vec::new();
    for _ in 0..count {
        // UTF-8 has no byte 255, which ends a text.
        let end = rest.iter().position(|&byte| byte == u8::MAX)?;
        texts.push(&rest[..end]);
        rest = &rest[end + 1..];
    }
    let planes = take(&mut rest, count.checked_mul(4)?)?;
    let listed = take(&mut rest, kinds.checked_mul(5)?)?;
    let mut kinds = listed.chunks_exact(5).map(|one| Some((number(&mut &one[..4])?, one[4])));
    let mut next_kind = kinds.next().flatten();
    let mut model = Vec::with_capacity(columns.len() * 2);
    let mut score = 0_u32;
    for (index, text) in texts.iter().enumerate() {
        let zigzag = u32::from_le_bytes([0, 1, 2, 3].map(|plane| planes[plane * count + index]));
        score = score.wrapping_add((zigzag >> 1) ^ (zigzag & 1).wrapping_neg());
        let mut piece = Vec::with_capacity(text.len() + 12);
        field(&mut piece, text);
        piece.push(0x15);
        piece.extend(score.to_le_bytes());
        if let Some((_, kind)) = next_kind.filter(|(of, _)| *of == index) {
            piece.extend([0x18, kind]);
            next_kind = kinds.next().flatten();
        }
        field(&mut model, &piece);
    }
    model.extend(rest);
    Some(model)
}

/// Appends the protobuf field 1 of this content.
fn field(message: &mut Vec<u8>, content: &[u8]) {
    message.push(0x0a);
    let mut length = content.len();
    while length > BITS {
        message.push((length & BITS) as u8 | MORE);
        length >>= 7;
    }
    message.push(length as u8);
    message.extend(content);
}

fn number(bytes: &mut &[u8]) -> Option<usize> {
    let taken = take(bytes, 4)?.try_into().ok()?;
    usize::try_from(u32::from_le_bytes(taken)).ok()
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two pieces, of which the second is of a kind, and a trainer's part.
    const COLUMNS: &[u8] = &[
        2, 0, 0, 0, 1, 0, 0, 0, b'a', 0xff, b'b', b'c', 0xff, // texts
        0, 1, 0, 0, 0, 0, 0, 0, // planes: no step, then one of -1
        1, 0, 0, 0, 4, 0x12, 0,
    ];

    #[test]
    fn columns_become_the_protobuf() {
        let first = [0x0a, 8, 0x0a, 1, b'a', 0x15, 0, 0, 0, 0];
        let second = [0x0a, 11, 0x0a, 2, b'b', b'c', 0x15, 255, 255, 255, 255, 0x18, 4];
        assert_eq!(restore(COLUMNS).unwrap(), [&first[..], &second, &[0x12, 0]].concat());
    }

    #[test]
    fn columns_that_are_cut_off_are_none() {
        for end in 0..COLUMNS.len() - 2 {
            assert_eq!(restore(&COLUMNS[..end]), None, "{end}");
        }
    }
}
