//! `xrun init`.

use super::terminal::eprint_line;
use crate::error::{Error, IoContext, Result};
use crate::machine::Machine;
use crate::recipe::{self, builtin};
use crate::regular;
use crate::results::folder::folder_name;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The schema is written beside the recipe, so that editors find it without a network and in copies of the
/// folder.
const SCHEMA: &str = "xrun.schema.json";

/// Arguments of `xrun init`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The recipe file to write.
    #[arg(value_name = "RECIPE.toml")]
    pub path: PathBuf,
    /// The built-in recipe to start from; `xrun ls` lists them.
    #[arg(long, value_name = "NAME", default_value = "quickstart")]
    pub from: String,
}

/// Writes a commented copy of a built-in recipe, and the schema of recipes beside it.
///
/// # Errors
/// Fails with a usage error if the name is unknown, the file does not end in `.toml`, or it already exists:
/// nothing is overwritten.
pub fn run(args: &Args) -> Result<()> {
    let path = &args.path;
    let (name, text) = builtin::get(&args.from)?;
    if path.extension().is_none_or(|ending| ending != "toml") {
        return Err(Error::usage(format!(
            "{} does not end in .toml, as recipes must; write {}",
            path.display(),
            path.with_extension("toml").display()
        )));
    }
    folder_name(&path.file_stem().unwrap_or_default().to_string_lossy())?;
    let mut file =
        OpenOptions::new().write(true).create_new(true).open(path).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => Error::usage(format!(
                "{} already exists; choose another name, or remove it first",
                path.display()
            )),
            ErrorKind::NotFound => {
                Error::usage(format!("cannot write {}: there is no such folder", path.display()))
            }
            _ => Error::usage(format!("cannot write {}: {e}", path.display())),
        })?;
    file.write_all(copy(name, text, path).as_bytes()).at("write", path)?;
    // Load the copy, to be sure that it is valid where it stands.
    recipe::load(path, &[], std::iter::empty(), &Machine::none())?;
    write_schema(&path.with_file_name(SCHEMA))?;
    eprint_line(&format!("wrote {} from {name}; to run it: xrun {}", path.display(), path.display()));
    Ok(())
}

/// Writes the schema that the recipe names, unless there is one already.
fn write_schema(path: &Path) -> Result<()> {
    let text = format!("{:#}\n", recipe::json_schema());
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()).at("write", path),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            if regular::read_text_through_link(path)? != text {
                let path = path.display();
                eprint_line(&format!(
                    "{path} comes from another version; `xrun schema > {path}` replaces it"
                ));
            }
            Ok(())
        }
        Err(e) => Err(e).at("write", path),
    }
}

/// Returns the text of the new recipe. Editors with taplo (Even Better TOML) look for its first line. Where
/// the original names the command that runs it, the copy names its own.
fn copy(name: &str, text: &str, path: &Path) -> String {
    let text = text.replace(&format!("xrun {name}\n"), &format!("xrun {}\n", path.display()));
    format!(
        "#:schema ./{SCHEMA}\n\
         # Started from the built-in recipe {name}. Every key: xrun schema, or docs/recipes.md.\n\
         # What is left out keeps its default. To change a value for one run: xrun RECIPE optimizer.lr=1e-3\n\
         {text}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_beside_the_recipe_is_written_once_and_never_replaced() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let schema = folder.path().join(SCHEMA);
        let start = |name: &str| {
            let path = folder.path().join(name);
            run(&Args { path: path.clone(), from: "quickstart".to_owned() }).expect("starts");
            std::fs::read_to_string(path).expect("a recipe")
        };
        assert!(start("a.toml").starts_with("#:schema ./xrun.schema.json\n"));
        let written = std::fs::read_to_string(&schema).expect("a schema");
        assert_eq!(written, format!("{:#}\n", recipe::json_schema()));
        std::fs::write(&schema, "mine").expect("written");
        start("b.toml");
        assert_eq!(std::fs::read_to_string(&schema).expect("a schema"), "mine");
    }

    #[test]
    fn every_built_in_recipe_can_be_started_from() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for name in builtin::names() {
            let path = folder.path().join(format!("{name}.toml"));
            let args = Args { path: path.clone(), from: name.to_owned() };
            run(&args).expect("first time");
            let again = run(&args).expect_err("nothing is overwritten");
            assert_eq!(again.kind(), crate::error::ErrorKind::Usage);
            assert_same(name, &path);
        }
    }

    /// Asserts that the copy sets the same values as the original.
    fn assert_same(name: &str, copy: &Path) {
        let load = |path| recipe::load(path, &[], std::iter::empty(), &Machine::none()).expect("loads");
        assert_eq!(load(Path::new(name)).values(), load(copy).values());
    }
}
