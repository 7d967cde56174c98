//! Which file imports which: paths are followed through `use` items and facades to the file that defines a
//! name.

use super::source::{Source, Use, in_package, room};
use std::collections::{BTreeMap, BTreeSet};

/// The files of a crate and the imports between them.
pub struct Graph {
    /// For each file, the files that it imports from.
    imports: BTreeMap<String, BTreeSet<String>>,
    /// For each file, the rooms that its paths name or lead to.
    rooms: BTreeMap<String, BTreeSet<String>>,
}

/// Names that a `use` may go through before it is taken for a circle of names.
const DEPTH: usize = 16;

struct Tree<'a> {
    /// Modules by path, with the file that holds each; those inside a file belong to it.
    modules: BTreeMap<Vec<String>, &'a Source>,
    /// Names that a module has from `use` items.
    names: BTreeMap<(Vec<String>, String), Vec<&'a Use>>,
    /// The file of each macro that is exported at the root.
    macros: BTreeMap<String, &'a Source>,
}

impl Graph {
    /// Follows every path of every file. Files that are compiled for tests alone are left out.
    pub fn new(sources: &[Source]) -> Self {
        let tests: BTreeSet<Vec<String>> = sources
            .iter()
            .flat_map(|s| s.test_modules.iter().map(|test| [s.module.clone(), vec![test.clone()]].concat()))
            .collect();
        let live: Vec<&Source> = sources.iter().filter(|s| !tests.contains(&s.module)).collect();
        let tree = Tree::new(&live);
        let (mut imports, mut rooms) = (BTreeMap::new(), BTreeMap::new());
        for source in &live {
            let mut files = BTreeSet::new();
            let mut named = BTreeSet::new();
            for used in &source.uses {
                // A module that shows a name of one of its own files does not need that file itself.
                let target = tree.absolute(&used.within, &used.path, true);
                let facade = used.public && target.is_some_and(|target| target.starts_with(&source.module));
                let target = tree.file_of(&used.within, &used.path, true);
                let lists_rooms = in_package(&source.path) == "lib.rs";
                files.extend(target.filter(|_| !facade && !lists_rooms).map(|target| target.path.clone()));
                named.extend(tree.named_room(&used.within, &used.path, true));
            }
            for path in &source.paths {
                files.extend(tree.file_of(&path.within, &path.path, false).map(|target| target.path.clone()));
                named.extend(tree.named_room(&path.within, &path.path, false));
            }
            files.remove(&source.path);
            named.extend(files.iter().map(|file| room(file).to_owned()).filter(|room| room != "lib"));
            imports.insert(source.path.clone(), files);
            rooms.insert(source.path.clone(), named);
        }
        // The root of a package only lists the rooms.
        rooms.retain(|file, _| in_package(file) != "lib.rs");
        Self { imports, rooms }
    }

    /// Every file with each room that it uses.
    pub fn room_imports(&self) -> impl Iterator<Item = (String, String)> {
        self.rooms.iter().flat_map(|(file, rooms)| rooms.iter().map(|room| (file.clone(), room.clone())))
    }

    /// Groups of files each of which leads to every other; files in order.
    pub fn circles(&self) -> Vec<Vec<String>> {
        let reach: BTreeMap<&str, BTreeSet<&str>> =
            self.imports.keys().map(|file| (file.as_str(), self.reachable(file))).collect();
        let mut circles = BTreeSet::new();
        for (file, reached) in &reach {
            let mut circle: Vec<String> = reached
                .iter()
                .filter(|other| reach.get(*other).is_some_and(|back| back.contains(file)))
                .map(|other| (*other).to_owned())
                .collect();
            circle.sort();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    /// Files that a file leads to; itself, where it is in a circle.
    fn reachable<'a>(&'a self, from: &str) -> BTreeSet<&'a str> {
        let mut found = BTreeSet::new();
        let mut next: Vec<&str> = self.imports[from].iter().map(String::as_str).collect();
        while let Some(file) = next.pop() {
            if found.insert(file) {
                next.extend(self.imports.get(file).into_iter().flatten().map(String::as_str));
            }
        }
        found
    }
}

impl<'a> Tree<'a> {
    fn new(sources: &[&'a Source]) -> Self {
        let mut tree = Self { modules: BTreeMap::new(), names: BTreeMap::new(), macros: BTreeMap::new() };
        for &source in sources {
            // The binary is a crate of its own: its file is no module of the library.
            tree.modules.insert(source.module.clone(), source);
            for used in &source.uses {
                tree.modules.entry(used.within.clone()).or_insert(source);
                let key = (used.within.clone(), used.name.clone());
                tree.names.entry(key).or_default().push(used);
            }
            for name in &source.root_macros {
                tree.macros.insert(name.clone(), source);
            }
        }
        tree
    }

    /// Returns the path from the crate's root; `None` for one that leads to another crate or stays in its
    /// file.
    fn absolute(&self, within: &[String], path: &[String], in_use: bool) -> Option<Vec<String>> {
        let first = path.first()?;
        let mut base = within.to_vec();
        let rest = match first.as_str() {
            "crate" | "xrun" => {
                base.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                let ups = path.iter().take_while(|part| *part == "super").count();
                base.truncate(base.len().checked_sub(ups)?);
                &path[ups..]
            }
            name => {
                let child = [within, &[name.to_owned()]].concat();
                // A word alone is a variable or a name of the file, unless a `use` brought it in: that is
                // counted there.
                if self.modules.contains_key(&child) && (in_use || path.len() > 1) {
                    path
                } else if let Some(used) = self.names.get(&(within.to_vec(), name.to_owned()))
                    && (path.len() > 1 || in_use)
                    && used[0].path != path
                {
                    let mut target = self.absolute(&used[0].within, &used[0].path, true)?;
                    target.extend_from_slice(&path[1..]);
                    return Some(target);
                } else {
                    return None;
                }
            }
        };
        base.extend_from_slice(rest);
        Some(base)
    }

    /// Returns the room that a path names by its first word behind the crate's root.
    fn named_room(&self, within: &[String], path: &[String], in_use: bool) -> Option<String> {
        let target = self.absolute(within, path, in_use)?;
        let first = target.first()?;
        self.modules.contains_key(std::slice::from_ref(first)).then(|| first.clone())
    }

    /// Returns the file that defines what a path names.
    fn file_of(&self, within: &[String], path: &[String], in_use: bool) -> Option<&'a Source> {
        if let Some(target) = self.absolute(within, path, in_use) {
            return self.definition(&target, DEPTH).or_else(|| self.holder(&target));
        }
        // A bare name may come by a glob.
        self.by_glob(within, path, DEPTH)
    }

    /// Returns the file of the longest beginning of a path that is a module, and the rest of the path.
    fn split<'t>(&self, target: &'t [String]) -> Option<(&'t [String], &'t [String])> {
        (0..=target.len())
            .rev()
            .find(|&len| self.modules.contains_key(&target[..len]))
            .map(|len| target.split_at(len))
    }

    /// Returns the file of the module that a path leads to or through; none at the root.
    fn holder(&self, target: &[String]) -> Option<&'a Source> {
        let (module, _) = self.split(target)?;
        (!module.is_empty()).then(|| self.modules[module])
    }

    /// Returns the file that defines the item at a path from the root, behind any number of facades.
    fn definition(&self, target: &[String], depth: usize) -> Option<&'a Source> {
        let depth = depth.checked_sub(1)?;
        let (module, rest) = self.split(target)?;
        let file = self.modules[module];
        let Some(name) = rest.first() else { return (!module.is_empty()).then_some(file) };
        if file.items.contains(name) {
            return Some(file);
        }
        let mut named = self.names.get(&(module.to_vec(), name.clone())).into_iter().flatten();
        let through = |used: &&Use| {
            let next = self.absolute(&used.within, &used.path, true)?;
            self.definition(&[next.as_slice(), &rest[1..]].concat(), depth)
        };
        let root_macro = || self.macros.get(name).copied().filter(|_| module.is_empty());
        named.find_map(through).or_else(|| self.by_glob(module, rest, depth)).or_else(root_macro)
    }

    /// Returns the file that defines a name which a module has from a glob.
    fn by_glob(&self, module: &[String], rest: &[String], depth: usize) -> Option<&'a Source> {
        let globs = self.names.get(&(module.to_vec(), "*".to_owned()))?;
        globs.iter().find_map(|glob| {
            let next = self.absolute(&glob.within, &glob.path, true)?;
            let target = [next.as_slice(), rest].concat();
            self.definition(&target, depth)
        })
    }
}
