//! Files are read back by a reader of the published layout that shares no code with the writer.

use super::*;
use crate::error::{Error, ErrorKind};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

/// A value of metadata as a reader sees it: the numbers of its formats, and its text.
type Field = (Vec<u32>, String);

/// A file as a reader sees it.
#[derive(Debug, Default, PartialEq)]
struct Read {
    fields: BTreeMap<String, Field>,
    /// Innermost dimension first, the number of the format, the bytes.
    tensors: BTreeMap<String, (Vec<u64>, u32, Vec<u8>)>,
    order: Vec<String>,
}

struct Reader<'a>(&'a [u8], usize);

impl Reader<'_> {
    fn take(&mut self, bytes: usize) -> &[u8] {
        self.1 += bytes;
        &self.0[self.1 - bytes..self.1]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let bytes = self.u64() as usize;
        String::from_utf8(self.take(bytes).to_vec()).unwrap()
    }

    fn value(&mut self, code: u32, codes: &mut Vec<u32>) -> String {
        codes.push(code);
        match code {
            4 => self.u32().to_string(),
            5 => (self.u32() as i32).to_string(),
            6 => f32::from_bits(self.u32()).to_string(),
            7 => (self.take(1)[0] == 1).to_string(),
            8 => self.text(),
            9 => {
                let inner = self.u32();
                codes.push(inner);
                let items: Vec<String> = (0..self.u64()).map(|_| self.value(inner, &mut vec![])).collect();
                format!("{items:?}")
            }
            _ => panic!("format {code}"),
        }
    }
}

/// Reads a file by the layout in llama.cpp's documentation.
fn read(path: &Path) -> Read {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = Reader(&bytes, 0);
    assert_eq!(reader.take(4), b"GGUF");
    assert_eq!(reader.u32(), 3);
    let (tensors, fields) = (reader.u64(), reader.u64());
    let mut file = Read::default();
    for _ in 0..fields {
        let (key, code) = (reader.text(), reader.u32());
        let mut codes = Vec::new();
        let value = reader.value(code, &mut codes);
        assert!(file.fields.insert(key, (codes, value)).is_none());
    }
    let mut infos = Vec::new();
    for _ in 0..tensors {
        let name = reader.text();
        let dims = reader.u32();
        let shape: Vec<u64> = (0..dims).map(|_| reader.u64()).collect();
        infos.push((name, shape, reader.u32(), reader.u64()));
    }
    let start = reader.1.next_multiple_of(32);
    assert!(bytes[reader.1..start].iter().all(|byte| *byte == 0));
    let mut end = start;
    for (name, shape, code, offset) in infos {
        let at = start + offset as usize;
        let size = if code == 0 { 4 } else { 2 };
        assert!(offset % 32 == 0 && at == end.next_multiple_of(32) && bytes[end..at].iter().all(|b| *b == 0));
        end = at + shape.iter().product::<u64>() as usize * size;
        file.order.push(name.clone());
        assert!(file.tensors.insert(name, (shape, code, bytes[at..end].to_vec())).is_none());
    }
    assert_eq!(bytes.len(), end.next_multiple_of(32));
    file
}

fn tensor(name: &str, shape: &[usize], element: Element, numbers: Vec<f32>) -> Tensor<'static> {
    Tensor {
        name: name.into(),
        shape: shape.to_vec(),
        element,
        numbers: Box::new(move || Ok(numbers.clone())),
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

#[test]
fn keys_and_tensors_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let metadata = [
        ("general.architecture".to_owned(), text("llama")),
        ("a.count".to_owned(), Value::U32(u32::MAX)),
        ("a.number".to_owned(), Value::F32(-1.5e-9)),
        ("a.yes".to_owned(), Value::Bool(true)),
        ("a.no".to_owned(), Value::Bool(false)),
        ("a.empty".to_owned(), Value::Texts(vec![])),
        ("a.texts".to_owned(), Value::Texts(vec!["é Ġ".into(), String::new()])),
        ("a.types".to_owned(), Value::I32s(vec![-1, 3])),
    ];
    let tensors = [
        tensor("z.weight", &[2, 3], Element::F32, vec![1.0, -2.0, 3.5, 0.0, f32::MIN_POSITIVE, 6.0]),
        tensor("b.weight", &[3], Element::F16, vec![1.0, 65504.0, 1.0 / 3.0]),
        tensor("c.weight", &[1, 2, 1], Element::Bf16, vec![1.0, f32::from_bits(0x3f81_8000)]),
    ];
    write(&path, &metadata, &tensors).unwrap();
    let file = read(&path);
    let field = |key: &str| {
        let (codes, value) = &file.fields[key];
        (codes.as_slice(), value.as_str())
    };
    assert_eq!(field("general.architecture"), (&[8][..], "llama"));
    assert_eq!(field("a.count"), (&[4][..], "4294967295"));
    assert_eq!(field("a.number"), (&[6][..], "-0.0000000015"));
    assert_eq!((field("a.yes"), field("a.no")), ((&[7][..], "true"), (&[7][..], "false")));
    assert_eq!(field("a.empty"), (&[9, 8][..], "[]"));
    assert_eq!(field("a.texts"), (&[9, 8][..], "[\"é Ġ\", \"\"]"));
    assert_eq!(field("a.types"), (&[9, 5][..], "[\"-1\", \"3\"]"));
    assert_eq!(file.fields.len(), metadata.len());
    assert_eq!(file.order, ["z.weight", "b.weight", "c.weight"]);
    let (shape, code, bytes) = &file.tensors["z.weight"];
    let floats: Vec<f32> = bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
    assert_eq!((shape.as_slice(), *code), (&[3, 2][..], 0));
    assert_eq!(floats, [1.0, -2.0, 3.5, 0.0, f32::MIN_POSITIVE, 6.0]);
    // Rounded to nearest, ties to even.
    let halves = |name: &str| {
        let (shape, code, bytes) = &file.tensors[name];
        let bits: Vec<u16> = bytes.as_chunks().0.iter().map(|&x| u16::from_le_bytes(x)).collect();
        (shape.clone(), *code, bits)
    };
    assert_eq!(halves("b.weight"), (vec![3], 1, vec![0x3c00, 0x7bff, 0x3555]));
    assert_eq!(halves("c.weight"), (vec![1, 2, 1], 30, vec![0x3f80, 0x3f82]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn tensors_of_any_size_are_aligned(sizes in proptest::collection::vec((1usize..40, 1usize..7, 0u8..3), 0..6)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.gguf");
        let formats = [Element::F32, Element::F16, Element::Bf16];
        let made: Vec<Tensor<'_>> = sizes.iter().enumerate().map(|(i, &(rows, columns, format))| {
            let numbers = (0..rows * columns).map(|n| n as f32).collect();
            tensor(&format!("t{i}"), &[rows, columns], formats[usize::from(format)], numbers)
        }).collect();
        write(&path, &[("general.architecture".to_owned(), text("x"))], &made).unwrap();
        let file = read(&path);
        prop_assert_eq!(file.tensors.len(), sizes.len());
        for (i, (rows, columns, format)) in sizes.into_iter().enumerate() {
            let (shape, _, bytes) = &file.tensors[&format!("t{i}")];
            prop_assert_eq!(shape, &vec![columns as u64, rows as u64]);
            let numbers: Vec<f32> = (0..rows * columns).map(|n| n as f32).collect();
            prop_assert_eq!(bytes, &formats[usize::from(format)].encode(&numbers).unwrap());
        }
    }
}

#[test]
fn what_no_reader_takes_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    let one = |name: &str| tensor(name, &[1], Element::F32, vec![1.0]);
    let key = |name: &str| (name.to_owned(), Value::U32(1));
    let shaped = |shape: &[usize]| tensor("t", shape, Element::F32, vec![]);
    let (long, longest) = ("n".repeat(64), "n".repeat(63));
    let failing = Tensor { numbers: Box::new(|| Err(Error::failed("no such weight"))), ..one("t") };
    for (keys, tensors, says) in [
        (vec![key("a"), key("a")], vec![], "two keys are named a"),
        (vec![key("")], vec![], "0 bytes"),
        (vec![key(&"k".repeat(65_536))], vec![], "has 65536 bytes; GGUF has 1 to 65535"),
        (vec![], vec![one("a"), one("b"), one("a")], "two tensors are named a"),
        (vec![], vec![one(&long)], "has 64 bytes; GGUF has 1 to 63"),
        (vec![], vec![shaped(&[])], "has the shape []"),
        (vec![], vec![shaped(&[2, 0])], "has the shape [2, 0]"),
        (vec![], vec![shaped(&[1; 5])], "1 to 4 dimensions"),
        (vec![], vec![shaped(&[usize::MAX, 2])], "tensor t ends beyond any file"),
        (vec![], vec![shaped(&[1 << 60, 1]), one("b")], "tensor t ends beyond any file"),
        (vec![], vec![shaped(&[2])], "tensor t has 0 elements, but its shape [2] has 2"),
        (vec![], vec![one("a"), failing], "no such weight"),
    ] {
        let error = write(&path, &keys, &tensors).unwrap_err();
        assert!(error.message().contains(says), "{says}: {error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{says}");
    }
    write(&path, &[], &[one(&longest)]).unwrap();
}

#[test]
fn numbers_that_a_format_lacks_are_refused_with_their_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.gguf");
    // Halfway between the largest number and the next power of two: rounds up, away from the even one.
    for (element, fits, overflows) in
        [(Element::F16, 65_519.99, 65_520.0), (Element::Bf16, f32::from_bits(0x7f7f_7fff), f32::MAX)]
    {
        for value in [overflows, -overflows] {
            let tensors = [tensor("blk.0.ffn_up.weight", &[2], element, vec![1.0, value])];
            let error = write(&path, &[], &tensors).unwrap_err();
            assert!(error.message().starts_with("tensor blk.0.ffn_up.weight: element 1 is "), "{error}");
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(!path.exists());
        }
        assert!(element.encode(&[fits, -fits]).is_ok() && element.rounded(fits).is_finite());
    }
    assert!(Element::F32.encode(&[f32::MAX, f32::MIN]).is_ok());
}

#[test]
fn only_a_file_in_gguf_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let one = || [tensor("a", &[1], Element::F32, vec![1.0])];
    write(&at("a.gguf"), &[], &one()).unwrap();
    write(&at("a.gguf"), &[("k".to_owned(), Value::U32(1))], &one()).unwrap();
    assert_eq!(read(&at("a.gguf")).fields.len(), 1);
    std::fs::write(at("notes"), "GGU").unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::os::unix::fs::symlink("a.gguf", at("link")).unwrap();
    for (name, says) in [
        ("notes", "exists and is not in GGUF"),
        ("empty", "exists and is not in GGUF"),
        ("folder", "is not a regular file"),
        ("link", "is not a regular file"),
    ] {
        let error = write(&at(name), &[], &one()).unwrap_err();
        assert!(error.message().contains(says) && error.kind() == ErrorKind::Usage, "{name}: {error}");
    }
    assert_eq!(std::fs::read(at("notes")).unwrap(), b"GGU");
    let error = write(&at("no/a.gguf"), &[], &one()).unwrap_err();
    assert!(error.message().contains("no"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 5);
}
