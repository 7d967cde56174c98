//! A source file as this test needs it: the paths it names, the items it defines, its `unsafe` code.

use std::collections::BTreeSet;
use syn::buffer::{Cursor, TokenBuffer};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A file below `src`, parsed, without code under `#[cfg(test)]`.
pub struct Source {
    /// The path below `src`, with `/`.
    pub path: String,
    /// The path of its module, from the crate's root.
    pub module: Vec<String>,
    /// Names that its `use` items bring in, with what they stand for; `*` for a glob.
    pub uses: Vec<Use>,
    /// All other paths that it names, from the module they stand in.
    pub paths: Vec<Named>,
    /// Names of items that it defines, modules aside.
    pub items: BTreeSet<String>,
    /// Macros that it exports at the crate's root.
    pub root_macros: BTreeSet<String>,
    /// Where it says `unsafe`.
    pub unsafes: Vec<Unsafe>,
    /// Child modules that are compiled for tests alone.
    pub test_modules: BTreeSet<String>,
    lines: Vec<String>,
}

/// One name that a `use` item brings in.
#[derive(Clone, Debug)]
pub struct Use {
    /// The module that it stands in.
    pub within: Vec<String>,
    /// The name here.
    pub name: String,
    /// The path as written.
    pub path: Vec<String>,
    /// Returns true if it is visible outside of the module.
    pub public: bool,
}

/// A path, and the module that it stands in.
#[derive(Clone, Debug)]
pub struct Named {
    pub within: Vec<String>,
    pub path: Vec<String>,
}

/// The keyword `unsafe`.
#[derive(Clone, Copy, Debug)]
pub struct Unsafe {
    /// Its line, from 1.
    pub line: usize,
    /// True for a function or trait that callers must treat with care; false for code that does.
    pub declares: bool,
}

/// The folders of the library's packages.
const PACKAGES: [&str; 3] = ["engine/", "runner/", "lab/"];

/// Returns the path of a file within its package: `engine/ops/mod.rs` is `ops/mod.rs`, `main.rs` is itself.
pub fn in_package(path: &str) -> &str {
    PACKAGES.iter().find_map(|package| path.strip_prefix(package)).unwrap_or(path)
}

/// Returns the room of a file: the first part of its path within its package.
pub fn room(path: &str) -> &str {
    let first = in_package(path).split('/').next().unwrap_or_default();
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Returns the module of a file: `ranks/group.rs` is `ranks::group`, `ranks/mod.rs` is `ranks`.
fn module(path: &str) -> Vec<String> {
    let mut parts: Vec<String> =
        in_package(path).trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| last == "mod") || parts == ["lib"] {
        parts.pop();
    }
    parts
}

impl Source {
    /// Parses a file. Panics where it is not valid Rust.
    pub fn parse(path: &str, text: &str) -> Self {
        let file = syn::parse_file(text).unwrap_or_else(|e| panic!("{path}: {e}"));
        let mut source = Self {
            path: path.to_owned(),
            module: module(path),
            uses: Vec::new(),
            paths: Vec::new(),
            items: BTreeSet::new(),
            root_macros: BTreeSet::new(),
            unsafes: Vec::new(),
            test_modules: BTreeSet::new(),
            lines: text.lines().map(str::to_owned).collect(),
        };
        let within = source.module.clone();
        Reader { source: &mut source, within }.visit_file(&file);
        source
    }

    /// Returns true if the comment above a line (from 1) contains `says`; attributes and the beginning of the
    /// statement may stand between.
    pub fn documented(&self, line: usize, says: &str) -> bool {
        let mut above = self.lines[..line - 1].iter().rev().map(|line| line.trim());
        let comment = |line: &&str| line.starts_with("//");
        let skipped =
            |line: &&str| line.starts_with("#[") || (!line.is_empty() && !line.ends_with([';', '}']));
        let first = above.by_ref().find(|line| comment(line) || !skipped(line));
        first.into_iter().chain(above).take_while(comment).any(|line| line.contains(says))
    }
}

/// Walks a file and fills its [`Source`].
struct Reader<'a> {
    source: &'a mut Source,
    /// The module at hand: that of the file, or one inside it.
    within: Vec<String>,
}

impl Reader<'_> {
    fn path(&mut self, path: Vec<String>) {
        self.source.paths.push(Named { within: self.within.clone(), path });
    }

    fn add_use(&mut self, tree: &syn::UseTree, mut prefix: Vec<String>, public: bool) {
        let (name, path) = match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                return self.add_use(&path.tree, prefix, public);
            }
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.add_use(tree, prefix.clone(), public));
            }
            syn::UseTree::Glob(_) => ("*".to_owned(), prefix),
            syn::UseTree::Name(name) if name.ident == "self" => {
                (prefix.last().cloned().unwrap_or_default(), prefix)
            }
            syn::UseTree::Name(name) => {
                prefix.push(name.ident.to_string());
                (name.ident.to_string(), prefix)
            }
            syn::UseTree::Rename(rename) => {
                if rename.ident != "self" {
                    prefix.push(rename.ident.to_string());
                }
                (rename.rename.to_string(), prefix)
            }
        };
        self.source.uses.push(Use { within: self.within.clone(), name, path, public });
    }

    fn add_unsafe(&mut self, keyword: impl Spanned, declares: bool) {
        self.source.unsafes.push(Unsafe { line: keyword.span().start().line, declares });
    }

    /// Reads the paths and the `unsafe` in the arguments of a macro, which `syn` leaves as tokens.
    fn tokens(&mut self, mut at: Cursor<'_>) {
        let mut path: Vec<String> = Vec::new();
        // The number of colons since the last word of the path.
        let mut colons = 0;
        while !at.eof() {
            if let Some((ident, next)) = at.ident() {
                if ident == "unsafe" {
                    self.add_unsafe(&ident, false);
                }
                if colons != 2 && !path.is_empty() {
                    self.path(std::mem::take(&mut path));
                }
                path.push(ident.to_string());
                (at, colons) = (next, 0);
            } else if let Some((punct, next)) = at.punct().filter(|(punct, _)| punct.as_char() == ':') {
                let _ = punct;
                (at, colons) = (next, colons + 1);
            } else {
                if !path.is_empty() {
                    self.path(std::mem::take(&mut path));
                }
                colons = 0;
                if let Some((inside, _, _, next)) = at.any_group() {
                    self.tokens(inside);
                    at = next;
                } else if let Some((_, next)) = at.token_tree() {
                    at = next;
                }
            }
        }
        if !path.is_empty() {
            self.path(path);
        }
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    let test = |attribute: &syn::Attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Ident>().is_ok_and(|condition| condition == "test")
    };
    attributes.iter().any(test)
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns the name of an item that others can import; modules are known by their files.
fn name(item: &syn::Item) -> Option<&syn::Ident> {
    Some(match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    })
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_test(attributes(item)) {
            if let syn::Item::Mod(module) = item {
                self.source.test_modules.insert(module.ident.to_string());
            }
            return;
        }
        if let Some(name) = name(item) {
            self.source.items.insert(name.to_string());
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.within.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.within.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let public = !matches!(item.vis, syn::Visibility::Inherited);
        self.add_use(&item.tree, Vec::new(), public);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        let exported = item.attrs.iter().any(|attribute| attribute.path().is_ident("macro_export"));
        if let Some(name) = item.ident.as_ref().filter(|_| exported) {
            self.source.root_macros.insert(name.to_string());
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        let buffer = TokenBuffer::new2(call.tokens.clone());
        self.tokens(buffer.begin());
        visit::visit_macro(self, call);
    }

    // `pub(super)` is no import.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        if let Some(keyword) = &signature.unsafety {
            self.add_unsafe(keyword, true);
        }
        visit::visit_signature(self, signature);
    }

    fn visit_expr_unsafe(&mut self, block: &'ast syn::ExprUnsafe) {
        self.add_unsafe(block.unsafe_token, false);
        visit::visit_expr_unsafe(self, block);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if let Some(keyword) = &item.unsafety {
            self.add_unsafe(keyword, false);
        }
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        if let Some(keyword) = &item.unsafety {
            self.add_unsafe(keyword, true);
        }
        visit::visit_item_trait(self, item);
    }

    fn visit_item_foreign_mod(&mut self, item: &'ast syn::ItemForeignMod) {
        if let Some(keyword) = &item.unsafety {
            self.add_unsafe(keyword, false);
        }
        visit::visit_item_foreign_mod(self, item);
    }
}
