//! The macro that turns the table of keys into structs, defaults and rows.

/// Defines the struct of a section with its `Default`, or imports it from its module.
macro_rules! section {
    ([] $purpose:expr; $Section:ident {
        $($(#[doc = $meaning:literal])+ $key:ident: $type:ty = $default:expr;)*
    } {
        $($(#[doc = $content:literal])+ $table:ident: $table_type:ty;)*
    }) => {
        #[doc = $purpose]
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $Section {
            $($(#[doc = $meaning])+ pub $key: $type,)*
            $($(#[doc = $content])+ pub $table: $table_type,)*
        }

        impl Default for $Section {
            fn default() -> Self {
                Self { $($key: $default,)* $($table: Default::default(),)* }
            }
        }
    };
    ([$module:ident] $purpose:expr; $Section:ident {} {}) => {
        pub use super::$module::$Section;
    };
}

pub(super) use section;

/// Defines a struct per section with its `Default`, the struct `Values` of all sections, and the tables
/// `SECTIONS` and `KEYS`. [`super::schema`] explains the syntax.
macro_rules! sections {
    ($(
        $(#[doc = $purpose:literal])+
        $section:ident: $Section:ident $(from $module:ident)? {
            $(
                $(#[doc = $meaning:literal])+
                $key:ident: $type:ty = $default:expr; $class:ident, $kind:expr, $example:expr
                $(=> $($attribute:ident($($argument:expr)?)),+)?;
            )*
        } $(tables {
            $($(#[doc = $content:literal])+ $table:ident: $table_type:ty = $table_module:ident;)*
        })?
    )+) => {
        $(section! {
            [$($module)?] concat!("`[", stringify!($section), "]`:", $($purpose),+); $Section {
                $($(#[doc = $meaning])+ $key: $type = $default;)*
            } {
                $($($(#[doc = $content])+ $table: $table_type;)*)?
            }
        })+

        /// The value of every key.
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Values {
            $($(#[doc = $purpose])+ pub $section: $Section,)+
        }

        /// The sections, in the order in which recipes are written, each with its purpose.
        pub static SECTIONS: &[(&str, &str)] = &[
            $((stringify!($section), $crate::recipe::key::doc_text(concat!($($purpose),+)))),+
        ];

        /// Every key, section by section.
        pub static KEYS: std::sync::LazyLock<Vec<$crate::recipe::key::Key>> = std::sync::LazyLock::new(|| {
            let section_keys = |section: &str| {
                $($(if section == stringify!($section) {
                    return super::$module::keys();
                })?)+
                let mut keys: Vec<_> = ROWS.iter().filter(|key| key.section() == section).copied().collect();
                $($($(if section == stringify!($section) {
                    keys.extend(super::$table_module::keys());
                })*)?)+
                keys
            };
            SECTIONS.iter().flat_map(|(section, _)| section_keys(section)).collect()
        });

        /// The keys of the sections that the macro call defines.
        static ROWS: &[$crate::recipe::key::Key] = &[$($(
            $crate::recipe::key::Key::new(
                concat!(stringify!($section), ".", stringify!($key)),
                $crate::recipe::key::Class::$class,
                $kind,
                $crate::recipe::key::doc_text(concat!($($meaning),+)),
                $example,
            )$($(.$attribute($($argument)?))+)?,
        )*)+];
    };
}

pub(super) use sections;
