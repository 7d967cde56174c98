//! Random model texts: most are models, and the others have one mistake, with the words by which it is
//! refused.

use std::collections::BTreeSet;

/// A text, what it contains, and why it is refused, if it is.
pub struct RandomText {
    pub text: String,
    pub constructs: BTreeSet<&'static str>,
    /// A part of the message.
    pub refusal: Option<&'static str>,
}

/// Every construct that texts contain.
pub const CONSTRUCTS: [&str; 41] = [
    "activation",
    "attention cap",
    "attention scale",
    "attention sinks",
    "attention window",
    "bias",
    "bias of the head",
    "block[i]",
    "broadcast of numbers per head",
    "concat",
    "decay",
    "dropout",
    "function of logits",
    "function of several rows",
    "heads with shared keys",
    "if",
    "init",
    "layer_norm",
    "logit cap",
    "mean",
    "norm of heads",
    "packed attention",
    "packed product",
    "position table",
    "power",
    "rms_norm",
    "role",
    "rope",
    "scalar",
    "second token table",
    "shift",
    "skip to the head",
    "slice",
    "stack",
    "sum",
    "sum with a product",
    "tied head",
    "unpacked attention",
    "values of another width",
    "vector",
    "weight less 1",
];

/// Mistakes: a statement of a block, and a part of the message.
const MISTAKES: [(&str, &str); 16] = [
    ("x = x + nothing", "unknown name"),
    ("x = x + linear(x, dim + 1, name = \"m\")", "beside"),
    ("x = x + slice(x, 0, dim + 1)", "to"),
    ("x = x + shift(x, -1)", "n"),
    ("x = x + block[layer].x", "is not before block"),
    ("x = x + block[layer + 1].x", "is not before block"),
    ("x = x + tokens", "tokens"),
    ("x = x + linear(x, dim, name = \"m\") + linear(x, dim, name = \"m\")", "a second parameter"),
    ("unread = linear(x, dim, name = \"m\")", "no logit depends"),
    ("x = x + heads(x, 5)", "heads"),
    ("x = x + linear(x, dim, name = \"m\", role = \"matrices\")", "did you mean"),
    ("x = x + vector(dim, 0, name = \"m\", role = \"matrix\")", "is a vector"),
    ("x = x + dropout(x, 1)", "probability"),
    ("x = x + linear(x, 0, name = \"m\")", "whole number"),
    ("x = x + attention(heads(x, 4), heads(x, 2), heads(x, 2))", "wide"),
    ("x = sine(x)", "unknown function"),
];

/// A value of a text: its name, heads and width of a head.
type Value = (String, (usize, usize));

const DIM: usize = 32;

struct Generator {
    lines: Vec<String>,
    state: u64,
    next: usize,
    constructs: BTreeSet<&'static str>,
}

/// Returns the text with this number. The text is for [`TINY`](crate::engine::harness::TINY).
pub fn random_text(number: u64) -> RandomText {
    let mut g = Generator {
        lines: Vec::new(),
        state: number.wrapping_mul(0xd134_2543_de82_ef95),
        next: 0,
        constructs: BTreeSet::new(),
    };
    let mistake = (number % 5 == 4).then(|| MISTAKES[g.below(MISTAKES.len())]);
    g.lines = vec!["embed:".to_owned(), "  x = embedding(tokens, dim, name = \"table\")".to_owned()];
    let mut outer: Vec<Value> = vec![("x".to_owned(), (1, DIM))];
    g.embed(&mut outer);
    g.lines.push("block:".to_owned());
    let sublayers = 1 + g.below(3);
    let faulty = g.below(sublayers);
    for sublayer in 0..sublayers {
        g.sublayer(&outer);
        if let Some((statement, _)) = mistake.filter(|_| sublayer == faulty) {
            g.lines.push(format!("  {statement}"));
        }
    }
    if g.often(3) {
        let weight = g.scalar();
        g.has("block[i]");
        g.has("if");
        g.lines.push(format!("  x = if layer > 0 then x + 0.2 * {weight} * block[layer - 1].x"));
    }
    g.lines.push("head:".to_owned());
    g.head();
    RandomText {
        text: g.lines.join("\n"),
        constructs: g.constructs,
        refusal: mistake.map(|(_, message)| message),
    }
}

impl Generator {
    /// Returns a number below `end` (Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
    /// 2014).
    fn below(&mut self, end: usize) -> usize {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % end as u64) as usize
    }

    /// Returns true once in `times`.
    fn often(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Writes a statement that gives a value a name, so that it can be read twice.
    fn named(&mut self, value: String) -> String {
        let name = self.name();
        self.lines.push(format!("  {name} = {value}"));
        name
    }

    fn has(&mut self, construct: &'static str) {
        self.constructs.insert(construct);
    }

    /// Returns a name that nothing has yet.
    fn name(&mut self) -> String {
        self.next += 1;
        format!("t{}", self.next)
    }

    /// Returns the attributes of a parameter.
    fn attributes(&mut self, is_matrix: bool) -> String {
        let mut attributes = format!(", name = \"{}\"", self.name());
        if self.often(6) {
            self.has("role");
            let roles: &[&str] =
                if is_matrix { &["embedding", "head", "matrix", "vector"] } else { &["embedding", "vector"] };
            attributes += &format!(", role = \"{}\"", self.pick(roles));
        }
        if self.often(6) {
            self.has("decay");
            attributes += self.pick(&[", decay = true", ", decay = false"]);
        }
        attributes
    }

    /// Returns a product with a matrix.
    fn linear(&mut self, x: &str, width: usize) -> String {
        let mut more = String::new();
        if self.often(4) {
            self.has("bias");
            more += ", bias = true";
        }
        if self.often(4) {
            self.has("init");
            more += self.pick(&[", init = normal(0.2)", ", init = \"residual\""]);
        }
        let attributes = self.attributes(true);
        format!("linear({x}, {width}{more}{attributes})")
    }

    fn scalar(&mut self) -> String {
        self.has("scalar");
        let attributes = self.attributes(false);
        format!("scalar(0.7{attributes})")
    }

    /// Returns a value of this shape, computed from rows in scope.
    fn expression(&mut self, scope: &[Value], shape: (usize, usize), depth: usize) -> String {
        let (heads, width) = shape;
        let alike: Vec<&Value> = scope.iter().filter(|(_, own)| *own == shape).collect();
        if depth == 0 {
            if let Some(at) = alike.len().checked_sub(1).map(|_| self.below(alike.len())) {
                return alike[at].0.clone();
            }
            let x = scope[self.below(scope.len())].0.clone();
            let product = self.linear(&x, heads * width);
            return if heads == 1 { product } else { format!("heads({product}, {heads})") };
        }
        let inner = |g: &mut Self| g.expression(scope, shape, depth - 1);
        match self.below(14) {
            0 | 1 => {
                self.has("function of several rows");
                let (a, b) = (inner(self), inner(self));
                let function = self.pick(&["sigmoid", "tanh", "silu", "gelu", "cos"]);
                format!("({a} * {function}({b}))")
            }
            2 => {
                let (a, b) = (inner(self), inner(self));
                let sign = self.pick(&["+", "-"]);
                format!("(0.5 * {a} {sign} {b})")
            }
            3 => {
                self.has("power");
                let a = inner(self);
                self.pick(&["tanh(A) ^ 2", "relu(A) ^ 2", "softplus(A) ^ 1.5"]).replace('A', &a)
            }
            4 => {
                self.has(if heads > 1 { "norm of heads" } else { "rms_norm" });
                let a = inner(self);
                if self.often(3) {
                    self.has("weight less 1");
                    let attributes = self.attributes(false);
                    let weight = format!("(1 + vector({width}, normal(0.2){attributes}))");
                    return format!("({weight} * rms_norm({a}, weight = false, eps = 0.01))");
                }
                let weight = self.pick(&["", ", weight = false"]);
                let name = self.name();
                let name = if weight.is_empty() { format!(", name = \"{name}\"") } else { String::new() };
                format!("rms_norm({a}{weight}, eps = 0.01{name})")
            }
            5 => {
                self.has("layer_norm");
                let a = inner(self);
                let name = self.name();
                // A norm of one element is 0 whatever it is.
                if width == 1 { a } else { format!("layer_norm({a}, eps = 0.01, name = \"{name}\")") }
            }
            6 => {
                self.has("shift");
                let a = inner(self);
                let a = self.named(a);
                let by = 1 + self.below(4);
                format!("({a} + shift({a}, {by}))")
            }
            7 if width > 1 => {
                self.has("concat");
                self.has("slice");
                let (a, b, at) = (inner(self), inner(self), 1 + self.below(width - 1));
                format!("concat(slice({a}, {}, {width}), slice({b}, 0, {}))", at, at)
            }
            8 => {
                let a = inner(self);
                let a = self.named(a);
                let reduction = self.pick(&["sum", "mean"]);
                self.has(reduction);
                format!("({a} * tanh({reduction}({a})))")
            }
            9 => {
                let (a, scalar) = (inner(self), self.scalar());
                format!("({scalar} * {a})")
            }
            10 => {
                self.has("vector");
                let a = inner(self);
                let attributes = self.attributes(false);
                let length = if self.often(2) { width } else { heads * width };
                let vector = format!("vector({length}, normal(0.5){attributes})");
                match length == width {
                    true => format!("({a} + {vector})"),
                    false => format!("({a} * heads({vector}, {heads}))"),
                }
            }
            11 => {
                self.has("broadcast of numbers per head");
                let a = inner(self);
                let x = scope[self.below(scope.len())].0.clone();
                let gate = self.linear(&x, heads);
                format!("({a} * sigmoid(heads({gate}, {heads})))")
            }
            12 => {
                self.has("dropout");
                format!("dropout({}, 0.125)", inner(self))
            }
            _ => {
                let a = inner(self);
                let flat = self.linear(&a, heads * width);
                if heads == 1 { flat } else { format!("heads({flat}, {heads})") }
            }
        }
    }

    fn embed(&mut self, outer: &mut Vec<Value>) {
        if self.often(3) {
            self.has("position table");
            self.lines.push("  x = x + embedding(positions, dim, name = \"places\")".to_owned());
        }
        if self.often(3) {
            self.has("second token table");
            let attributes = self.attributes(true);
            self.lines.push(format!("  other = embedding(tokens, {DIM}{attributes})"));
            outer.push(("other".to_owned(), (1, DIM)));
            // Something reads it, whatever the blocks do.
            self.lines.push("  x = x + 0.5 * other".to_owned());
        }
        if self.often(2) {
            let x = self.expression(&[("x".to_owned(), (1, DIM))], (1, DIM), 2);
            self.lines.push(format!("  x = x + {x}"));
        }
        self.lines.push("  first = x".to_owned());
        outer.push(("first".to_owned(), (1, DIM)));
    }

    /// Writes a part of a block that adds something to `x`.
    fn sublayer(&mut self, outer: &[Value]) {
        let mut scope = outer.to_vec();
        let normed = self.name();
        let norm = self.pick(&["rms_norm(x)", "layer_norm(x)", "rms_norm(x, weight = false)", "norm(x)"]);
        if norm != "norm(x)" {
            self.has(if norm.starts_with('l') { "layer_norm" } else { "rms_norm" });
        }
        self.lines.push(format!("  {normed} = {norm}"));
        scope.push((normed.clone(), (1, DIM)));
        let result = match self.below(4) {
            0 => self.packed_attention(&normed),
            1 => self.unpacked_attention(&scope),
            2 => self.stacked(&normed),
            _ => self.function(&scope),
        };
        let shape = result.1;
        scope.push(result.clone());
        let depth = self.below(3);
        let changed = self.expression(&scope, shape, depth);
        let product = self.linear(&format!("{} + {changed}", result.0), DIM);
        // Something reads the norm.
        if self.often(2) {
            self.has("sum with a product");
            self.lines.push(format!("  x = x - 0.3 * {normed}"));
            self.lines.push(format!("  x = x + {product}"));
        } else {
            self.lines.push(format!("  x = x + {product} - 0.3 * {normed}"));
        }
    }

    /// Returns arguments of attention with this many query heads.
    fn attention_arguments(&mut self, heads: usize) -> String {
        let mut more = String::new();
        if self.often(4) {
            self.has("attention sinks");
            let attributes = self.attributes(false);
            more += &format!(", sinks = vector({heads}, normal(0.5){attributes})");
        }
        if self.often(3) {
            self.has("attention window");
            self.has("if");
            more += ", window = if layer == 0 then 5 else none";
        }
        if self.often(3) {
            self.has("attention cap");
            more += ", cap = 8";
        }
        if self.often(4) {
            more += ", dropout = 0.25";
        }
        more
    }

    fn packed_attention(&mut self, normed: &str) -> Value {
        self.has("packed attention");
        self.has("packed product");
        let (heads, kv, width) = self.pick(&[(4, 2, 8), (2, 2, 16), (4, 1, 4), (3, 3, 6)]);
        if heads != kv {
            self.has("heads with shared keys");
        }
        let (q, k) = (heads * width, kv * width);
        let (packed, result) = (self.name(), self.name());
        let attributes = self.attributes(true);
        self.lines.push(format!("  {packed} = linear({normed}, {q}, {k}, {k}{attributes})"));
        let change = |g: &mut Self, x: String| match g.below(3) {
            0 => x,
            1 => {
                g.has("rope");
                format!("rope({x}, theta = 50)")
            }
            _ => {
                g.has("rope");
                g.has("norm of heads");
                format!("rms_norm(rope({x}, theta = 50), weight = false)")
            }
        };
        let query = change(self, format!("heads(slice({packed}, 0, {q}), {heads})"));
        let key = change(self, format!("heads(slice({packed}, {q}, {}), {kv})", q + k));
        let value = format!("heads(slice({packed}, {}, {}), {kv})", q + k, q + 2 * k);
        let more = self.attention_arguments(heads);
        self.lines.push(format!("  {result} = attention({query}, {key}, {value}{more})"));
        (result, (heads, width))
    }

    fn unpacked_attention(&mut self, scope: &[Value]) -> Value {
        self.has("unpacked attention");
        let (heads, kv, width) = self.pick(&[(4, 2, 8), (2, 2, 6), (4, 1, 4)]);
        let of_values = if self.often(2) { width } else { self.pick(&[3, 10, 12]) };
        if of_values != width {
            self.has("values of another width");
        }
        let result = self.name();
        let query = self.expression(scope, (heads, width), 1);
        let key = self.expression(scope, (kv, width), 1);
        let value = self.expression(scope, (kv, of_values), 1);
        let mut more = self.attention_arguments(heads);
        if self.often(3) {
            self.has("attention scale");
            more += ", scale = 0.3";
        }
        if self.often(2) {
            self.has("rope");
            self.lines.push(format!(
                "  {result} = attention(rope({query}, theta = 50), rope({key}, theta = 50), {value}{more})"
            ));
        } else {
            self.lines.push(format!("  {result} = attention({query}, {key}, {value}{more})"));
        }
        (result, (heads, of_values))
    }

    fn stacked(&mut self, normed: &str) -> Value {
        self.has("stack");
        let (stack, result, width) = (self.name(), self.name(), self.pick(&[24, 40, 5]));
        let attributes = self.attributes(true);
        self.lines.push(format!("  {stack} = linear({normed}, {width}, stack = 2{attributes})"));
        let (a, b) =
            (format!("slice({stack}, 0, {width})"), format!("slice({stack}, {width}, {})", 2 * width));
        let value = match self.below(3) {
            0 => {
                self.has("activation");
                format!("activation({a}, {b})")
            }
            1 => format!("silu({a}) * {b}"),
            _ => {
                let scalar = self.scalar();
                format!("{scalar} * tanh({a}) * {b} + {a}")
            }
        };
        self.lines.push(format!("  {result} = {value}"));
        (result, (1, width))
    }

    fn function(&mut self, scope: &[Value]) -> Value {
        let shape = self.pick(&[(1, 24), (1, 32), (4, 8), (2, 5), (3, 1)]);
        let result = self.name();
        let value = self.expression(scope, shape, 3);
        self.lines.push(format!("  {result} = {value}"));
        (result, shape)
    }

    fn head(&mut self) {
        let mut rows = "x".to_owned();
        if self.often(3) {
            self.has("skip to the head");
            self.has("block[i]");
            rows = format!("x + {} * block[0].x", self.scalar());
        }
        self.lines.push(format!("  last = rms_norm({rows})"));
        let weight = if self.often(2) {
            self.has("tied head");
            "weight = \"table\""
        } else if self.often(2) {
            self.has("bias of the head");
            "bias = true, name = \"output\""
        } else {
            "name = \"output\""
        };
        self.lines.push(format!("  logits = linear(last, vocab_size, {weight})"));
        match self.below(4) {
            0 => {
                self.has("logit cap");
                self.lines.push("  logits = 12 * tanh(0.8 * logits / 12)".to_owned());
            }
            1 => {
                self.has("function of logits");
                let function =
                    self.pick(&["15 * L / (L ^ 2 + 225) ^ 0.5", "L + 0.5 * tanh(L)", "-softplus(-L)"]);
                self.lines.push(format!("  logits = {}", function.replace('L', "logits")));
            }
            _ => {}
        }
    }
}
