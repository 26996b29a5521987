//! The parser on hand-written PTX.

use super::*;

const HEAD: &str = ".version 9.0\n.target sm_100a, debug\n.address_size 64\n";

/// The instructions of a kernel with this body.
fn instructions(body: &str) -> Vec<Instruction> {
    let module = parse(&format!("{HEAD}.entry k()\n{{\n{body}\n}}")).unwrap();
    let statements = module.functions[0].body.clone().unwrap();
    let instruction = |statement| match statement {
        Statement::Instruction(instruction) => instruction,
        other => panic!("{other:?} is no instruction"),
    };
    statements.into_iter().map(instruction).collect()
}

/// The operands of an instruction that consists of them.
fn operands(text: &str) -> Vec<Operand> {
    instructions(&format!("op {text};")).remove(0).operands
}

fn name(name: &str) -> Operand {
    Operand::Name(name.into())
}

fn address(base: Option<&str>, offset: i64) -> Operand {
    Operand::Address { base: base.map(|base| Box::new(name(base))), offset }
}

fn module_error(source: &str) -> (u32, u32, String, String) {
    let ParseError { line, column, found, expected } = parse(source).unwrap_err();
    (line, column, found, expected)
}

#[test]
fn reads_the_head_of_a_module() {
    let module = parse(&format!("// a comment\n{HEAD}/* no\nmore */")).unwrap();
    assert_eq!((module.version, module.address_size), ((9, 0), 64));
    assert_eq!((module.target.as_str(), module.target_options), ("sm_100a", vec!["debug".to_owned()]));
    assert!(module.variables.is_empty() && module.functions.is_empty());
    assert_eq!(parse(".version 8.7 .target sm_90").unwrap().address_size, 32);
}

#[test]
fn reads_module_variables() {
    let source = format!(
        "{HEAD}.extern .shared .align 1024 .b8 dynamic[];
        .visible .global .align 4 .u32 table[2][3] = {{{{1, -2, 0x10}}, {{4, 010, 0b101U}}}};
        .const .f32 pi = 0f40490FDB, half = 0.5;
        .global .v4 .f32 vectors[2];
        .global .u64 pointers[] = {{table, generic(table)+8, generic(table+4)}};
        .weak .global .f64 big = -1.5e3;"
    );
    let variables = parse(&source).unwrap().variables;
    let named = |name: &str| variables.iter().find(|variable| variable.name == name).unwrap();
    let dynamic = named("dynamic");
    assert_eq!(
        (dynamic.space, dynamic.align, dynamic.array, dynamic.is_extern),
        (StateSpace::Shared, 1024, Some(0), true)
    );
    let table = named("table");
    assert_eq!((table.ty, table.array, table.is_extern, table.vector), (ScalarType::U32, Some(6), false, 1));
    let bits: Vec<_> = table.initial.iter().map(|value| value.bits(table.ty)).collect();
    assert_eq!(bits, [1, 0xffff_fffe, 16, 4, 8, 5].map(Some));
    assert_eq!(named("pi").initial[0].bits(ScalarType::F32), Some(u128::from(std::f32::consts::PI.to_bits())));
    assert_eq!(named("half").initial[0].bits(ScalarType::F32), Some(0x3f00_0000));
    assert_eq!(named("half").initial[0].bits(ScalarType::S32), None);
    assert_eq!((named("vectors").vector, named("vectors").array), (4, Some(2)));
    assert_eq!(named("big").initial[0].bits(ScalarType::F64), Some(u128::from((-1500_f64).to_bits())));
    let at = |offset, generic| Initializer::Address { name: "table".into(), offset, generic };
    assert_eq!(named("pointers").initial, [at(0, false), at(8, true), at(4, true)]);
    assert_eq!(named("pointers").array, Some(3));
    assert_eq!(at(0, false).bits(ScalarType::U64), None);
    assert_eq!(Initializer::Integer(-1).bits(ScalarType::B128), Some(u128::MAX));
}

#[test]
fn reads_a_kernel_with_parameters_and_directives() {
    let source = format!(
        "{HEAD}.file 1 \"kernel.cu\"
        .visible .entry kernel(
            .param .u64 .ptr .global .align 16 pointer,
            .param .align 64 .b8 map[128],
            .param .f32 alpha)
        .explicitcluster .reqntid 192, 1, 1
        .reqnctapercluster 2 .minnctapersm 1 .maxnreg 168 .maxntid 32,8 .maxclusterrank 8 .pragma \"a\", \"b\";
        {{ ret; }}
        .section .debug_str {{ info: .b8 1, 2 }}"
    );
    let module = parse(&source).unwrap();
    let [kernel] = module.functions.as_slice() else { panic!("{module:?}") };
    assert_eq!((kernel.name.as_str(), kernel.kind, kernel.line), ("kernel", FunctionKind::Entry, 5));
    let params: Vec<_> = kernel.params.iter().map(|p| (p.name.as_str(), p.ty, p.align, p.array)).collect();
    let expected = [
        ("pointer", ScalarType::U64, 0, None),
        ("map", ScalarType::B8, 64, Some(128)),
        ("alpha", ScalarType::F32, 0, None),
    ];
    assert_eq!(params, expected);
    let directives = Directives {
        reqntid: Some([192, 1, 1]),
        maxntid: Some([32, 8, 1]),
        minnctapersm: Some(1),
        maxnreg: Some(168),
        reqnctapercluster: Some([2, 1, 1]),
        maxclusterrank: Some(8),
        explicitcluster: true,
        ..Directives::default()
    };
    assert_eq!(kernel.directives, directives);
}

#[test]
fn reads_device_functions_and_calls() {
    let source = format!(
        "{HEAD}.extern .func (.param .b32 result) vprintf(.param .b64 a, .param .b64 b);
        .func .noreturn stop;
        .entry k() {{
        p: .callprototype (.param .b32 _) _ (.param .b64 _);
        call.uni (result), vprintf, (a, b);
        call stop;
        call (r), %rd1, (a), p;
        }}"
    );
    let module = parse(&source).unwrap();
    let vprintf = &module.functions[0];
    assert_eq!((vprintf.kind, vprintf.returns.len(), vprintf.params.len()), (FunctionKind::Device, 1, 2));
    assert!(vprintf.body.is_none() && module.functions[1].directives.noreturn);
    let body = module.functions[2].body.as_ref().unwrap();
    assert!(matches!(&body[0], Statement::CallPrototype { label, returns, params }
        if label == "p" && returns.len() == 1 && params.len() == 1));
    let call = |returns: &[&str], function: &str, arguments: &[&str], prototype: Option<&str>| Operand::Call {
        returns: returns.iter().map(|text| name(text)).collect(),
        function: Box::new(name(function)),
        arguments: arguments.iter().map(|text| name(text)).collect(),
        prototype: prototype.map(Into::into),
    };
    let calls: Vec<_> = body[1..]
        .iter()
        .map(|statement| match statement {
            Statement::Instruction(instruction) => instruction.operands[0].clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        call(&["result"], "vprintf", &["a", "b"], None),
        call(&[], "stop", &[], None),
        call(&["r"], "%rd1", &["a"], Some("p")),
    ];
    assert_eq!(calls, expected);
}

#[test]
fn reads_statements() {
    let source = format!(
        "{HEAD}.entry k() {{
        .reg .b32 %r<5>, single;
        .reg .v2 .f32 pair;
        .shared .align 16 .b8 buffer[64];
        .loc 1 5 3
        $L__BB0_1: .pragma \"nounroll\";
        list: .branchtargets $L__BB0_1, other;
        {{ .reg .pred p; }}
        }}"
    );
    let body = parse(&source).unwrap().functions.remove(0).body.unwrap();
    let registers = |ty, prefix: &str, count| Statement::Registers { ty, prefix: prefix.into(), count };
    assert_eq!(body[0], registers(ScalarType::B32, "%r", Some(5)));
    assert_eq!(body[1], registers(ScalarType::B32, "single", None));
    assert!(matches!(&body[2], Statement::Variable(v) if v.space == StateSpace::Reg && v.vector == 2));
    assert!(matches!(&body[3], Statement::Variable(v) if v.space == StateSpace::Shared && v.array == Some(64)));
    assert_eq!(body[4], Statement::Label("$L__BB0_1".into(), 9));
    let targets = vec!["$L__BB0_1".into(), "other".into()];
    assert_eq!(body[5], Statement::BranchTargets { label: "list".into(), targets });
    assert_eq!(body[6], Statement::Block(vec![registers(ScalarType::Pred, "p", None)]));
    assert_eq!(body.len(), 7);
}

#[test]
fn reads_opcodes_modifiers_and_guards() {
    let read = instructions(
        "@%p1 bra.uni $L1;
        @!p mbarrier.arrive.expect_tx.shared::cta.b64 _, [bar], %r1;
        tcgen05.ld.sync.aligned.32x32b.x2.b32{%r1, %r2}, [%r3];
        mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col\n\t.f32 a;
        tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], %rd1;
        op.multicast::cluster::all;",
    );
    let guard = |register: &str, negated| Some(Guard { register: register.into(), negated });
    assert_eq!((read[0].guard.clone(), read[0].line), (guard("%p1", false), 6));
    assert_eq!((read[0].opcode.as_str(), &read[0].modifiers), ("bra", &vec!["uni".to_owned()]));
    assert_eq!(read[1].guard, guard("p", true));
    assert_eq!(read[1].modifiers, ["arrive", "expect_tx", "shared::cta", "b64"]);
    assert_eq!(read[2].modifiers, ["ld", "sync", "aligned", "32x32b", "x2", "b32"]);
    assert_eq!(read[2].operands, [Operand::Vector(vec![name("%r1"), name("%r2")]), address(Some("%r3"), 0)]);
    let mma =
        ["sync", "aligned", "kind::mxf4nvf4", "block_scale", "scale_vec::4X", "m16n8k64", "row", "col", "f32"];
    assert_eq!((read[3].modifiers.as_slice(), read[3].line), (mma.map(str::to_owned).as_slice(), 9));
    assert_eq!(read[4].modifiers, ["cp", "cta_group::1", "32x128b", "warpx4"]);
    assert_eq!(read[5].modifiers, ["multicast::cluster::all"]);
}

#[test]
fn reads_every_kind_of_operand() {
    let names = operands("%r1, %tid.x, %cluster_ctarank, label, $L, _, %r1.b0, WARP_SZ");
    assert_eq!(names, ["%r1", "%tid.x", "%cluster_ctarank", "label", "$L", "_", "%r1.b0", "WARP_SZ"].map(name));
    let integers = operands("0, -1, 4294967295, 0xFFFFFFFFFFFFFFFF, 0x1e5, 017, 0b11, 7U, -0x80, +3");
    let expected = [0, -1, 0xffff_ffff, 0xffff_ffff_ffff_ffff, 0x1e5, 15, 3, 7, -128, 3];
    assert_eq!(integers, expected.map(Operand::Integer));
    let floats = operands("0f3F800000, -0f3F800000, 0d3FF0000000000000, 1.5, 2., 1e3, -2.5E-1");
    let double = |value: f64| Operand::Float64(value.to_bits());
    let single = |value: f32| Operand::Float32(value.to_bits());
    let expected =
        [single(1.0), single(-1.0), double(1.0), double(1.5), double(2.0), double(1000.0), double(-0.25)];
    assert_eq!(floats, expected);
    let addresses = operands("[%rd1], [%rd1+16], [%rd1 + -16], [%rd1-16], [variable+4+8], [64], [-4], variable+8");
    let rd1 = Some("%rd1");
    let variable = |offset| address(Some("variable"), offset);
    let expected = [
        address(rd1, 0),
        address(rd1, 16),
        address(rd1, -16),
        address(rd1, -16),
        variable(12),
        address(None, 64),
        address(None, -4),
        variable(8),
    ];
    assert_eq!(addresses, expected);
    assert_eq!(operands("[0xFFFFFFFFFFFFFFFF]"), [address(None, -1)]);
    let (a, b) = (Box::new(name("a")), Box::new(name("b")));
    let not = Operand::Not(b.clone());
    assert_eq!(
        operands("a|b, !b, a|!b"),
        [Operand::Pair(a.clone(), b), not.clone(), Operand::Pair(a.clone(), Box::new(not)),]
    );
    assert_eq!(
        operands("{a, 1, _}, {}"),
        [Operand::Vector(vec![name("a"), Operand::Integer(1), name("_")]), Operand::Vector(vec![]),]
    );
    let coordinates = vec![name("%r1"), Operand::Integer(0)];
    assert_eq!(
        operands("[a, {%r1, 0}], [b+64, {%r1, 0}], {x}"),
        [
            Operand::TensorCoordinates { map: a, coordinates: coordinates.clone() },
            Operand::TensorCoordinates { map: Box::new(address(Some("b"), 64)), coordinates },
            Operand::Vector(vec![name("x")]),
        ]
    );
}

#[test]
fn tells_where_and_what() {
    let error = |line, column, found: &str, expected: &str| (line, column, found.to_owned(), expected.to_owned());
    let body = |body: &str| module_error(&format!("{HEAD}.entry k() {{\n  {body}\n}}"));
    assert_eq!(body("add.u32 %r1 %r2;"), error(5, 15, "`%r2`", "`,` or `;`"));
    assert_eq!(body("ld.b32 a, [b;"), error(5, 15, "`;`", "`+`, `-`, `,` or `]`"));
    assert_eq!(body("mov.f32 a, 0f123;"), error(5, 14, "`0f123`", "8 hexadecimal digits for the float's bits"));
    assert_eq!(body("mov.b32 a, 99999999999999999999;").3, "an integer of at most 64 bits");
    assert_eq!(body("mov.b32 a, 0x;").3, "an integer of at most 64 bits");
    assert_eq!(body("ld.b32 a, [b+9223372036854775807+1];").3, "an offset of 64 bits");
    assert_eq!(body(".reg .b99 a;").2, "`.b99`");
    assert_eq!(body("/* open").3, "`*/`");
    assert_eq!(body(".pragma \"open").2, "a string without an end");
    assert_eq!(body(".local .b8 a[4294967296][4294967296];").3, "an array of less than 2^64 elements");
    assert_eq!(module_error(""), error(1, 1, "the end of the text", "`.version`, with which PTX begins"));
    assert_eq!(module_error("\n.version 9 .target a").3, "a version as `9.0`");
    assert_eq!(module_error(&format!("{HEAD}.entry k() {{\n")).2, "the end of the text");
    let deep = format!("{HEAD}.entry k() {{{}", "{".repeat(100_000));
    assert_eq!(module_error(&deep).3, "at most 128 nested braces and brackets");
    let deep = format!("{HEAD}.entry k() {{ mov a, {}", "!{".repeat(100_000));
    assert_eq!(module_error(&deep).3, "at most 128 nested braces and brackets");
    let text = parse(".version").unwrap_err().to_string();
    assert_eq!(text, "PTX line 1, column 9: found the end of the text, expected a version as `9.0`");
}

/// Broken text is an error and never a panic: every prefix, every suffix and every text with a character replaced.
#[test]
fn broken_text_does_not_panic() {
    let text = format!(
        "{HEAD}.extern .shared .align 16 .b8 s[];\n.global .f32 g[2] = {{0f3F800000, -1.5e-3}};
        .file 1 \"ä.cu\"\n.visible .entry k(.param .u64 .ptr .align 8 p) .reqntid 32, 1 {{ /* é */
        .reg .b32 %r<5>; l: @!%p1 ld.shared::cta.v2.u32 {{%r1, _}}, [s+-0x10]; .pragma \"x\";
        cp.async.bulk.2d [m+4, {{%r1, 0b1}}], a|!b; {{ call (r), f, (a), q; }} brx.idx %r1, t; // end
        t: .branchtargets l; q: .callprototype _ (.param .b32 _); }}"
    );
    assert_eq!(parse(&text).map(|module| module.functions.len()), Ok(1));
    let mut errors = 0;
    for (at, c) in text.char_indices() {
        errors += usize::from(parse(&text[..at]).is_err());
        errors += usize::from(parse(&text[at + c.len_utf8()..]).is_err());
        for replacement in ["", "\"", "{", "}", "[", ".", ":", "-", "0", "ß", "/*", "\0"] {
            let broken = [&text[..at], replacement, &text[at + c.len_utf8()..]].concat();
            errors += usize::from(parse(&broken).is_err());
        }
    }
    assert!(errors > text.len(), "{errors}");
}

#[test]
fn types_have_names_and_widths() {
    let cases =
        [("b128", 128), ("u16x2", 32), ("bf16x2", 32), ("f32x2", 64), ("e2m1x2", 8), ("e4m3x2", 16), ("pred", 1)];
    for (name, bits) in cases {
        let ty = ScalarType::from_name(name).unwrap();
        assert_eq!((ty.bits(), ty.name(), ty.to_string()), (bits, name, format!(".{name}")));
    }
    assert_eq!(ScalarType::from_name("b7"), None);
    assert!(ScalarType::S64.is_signed() && !ScalarType::U64.is_signed() && !ScalarType::F32.is_signed());
}
