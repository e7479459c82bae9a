//! Object keys as file names.
//!
//! A key's parts become directories, its last part a file whose name ends in `@`; everything else but a few harmless
//! characters is written as `%` and hexadecimal digits. So key `x` and key `x/y` can exist together, no key leaves the
//! bucket's directory, and names sort nearly as keys do.

use std::path::{Path, PathBuf};

/// End of a file name that holds an object; cannot occur in an encoded part.
const OBJECT_MARK: char = '@';

/// File of an object below its bucket's directory.
pub(super) fn object_file(bucket: &Path, key: &str) -> PathBuf {
    let mut parts: Vec<String> = key.split('/').map(encode).collect();
    if let Some(last) = parts.last_mut() {
        last.push(OBJECT_MARK);
    }
    parts.iter().fold(bucket.to_owned(), |path, part| path.join(part))
}

/// Directory that holds every key with the prefix (and maybe others).
pub(super) fn prefix_dir(bucket: &Path, prefix: &str) -> PathBuf {
    let Some((parents, _)) = prefix.rsplit_once('/') else {
        return bucket.to_owned();
    };
    parents.split('/').map(encode).fold(bucket.to_owned(), |path, part| path.join(part))
}

/// The key part that a file's name stands for; `None` when the file is no object.
pub(super) fn object_part(file_name: &str) -> Option<String> {
    file_name.strip_suffix(OBJECT_MARK).and_then(decode)
}

/// The key part that a directory's name stands for.
pub(super) fn dir_part(dir_name: &str) -> Option<String> {
    decode(dir_name)
}

/// Writes a key part as a name. An empty part is `%`.
fn encode(part: &str) -> String {
    if part.is_empty() {
        return "%".to_owned();
    }
    let only_dots = part.bytes().all(|byte| byte == b'.');
    let mut name = String::with_capacity(part.len() + 1);
    for byte in part.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_=+,".contains(&byte) || (byte == b'.' && !only_dots);
        if plain {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    name
}

fn decode(name: &str) -> Option<String> {
    if name == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_survive_the_way_to_a_name_and_back() {
        for part in ["", "a", "..", ".", "a.b", "x@", "ü€", "100%", "%41", "a b\\c:d", "UPPER", "\u{0}"] {
            let name = encode(part);
            assert!(!name.contains(['/', '@', '\\', '\u{0}']), "{name}");
            assert!(name != "." && name != "..", "{part}");
            assert_eq!(decode(&name).as_deref(), Some(part), "{name}");
        }
    }

    #[test]
    fn no_key_leaves_the_bucket() {
        let bucket = Path::new("/data/bucket");
        assert_eq!(object_file(bucket, "../../etc/passwd"), Path::new("/data/bucket/%2E%2E/%2E%2E/etc/passwd@"));
        assert_eq!(object_file(bucket, "/etc/passwd"), Path::new("/data/bucket/%/etc/passwd@"));
        assert_eq!(prefix_dir(bucket, "../x"), Path::new("/data/bucket/%2E%2E"));
    }

    #[test]
    fn a_key_and_a_key_below_it_have_different_places() {
        let bucket = Path::new("b");
        assert_eq!(object_file(bucket, "x"), Path::new("b/x@"));
        assert_eq!(object_file(bucket, "x/y"), Path::new("b/x/y@"));
        assert_eq!(object_part("y@").as_deref(), Some("y"));
        assert_eq!(object_part("y"), None);
    }
}
