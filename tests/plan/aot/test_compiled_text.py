"""What is read from XLA's text of a program."""

import pytest

from rl_sync.plan.compiled_text import CompiledProgramText, MemoryUse, Shape

TEXT = """\
HloModule jit_f, input_output_alias={ {0}: (0, {}, may-alias), {1}: (2, {}, must-alias) }

%fused_add (p0: f32[8,4]) -> f32[8,4] {
  %p0 = f32[8,4]{1,0} parameter(0)
  ROOT %add.1 = f32[8,4]{1,0} add(%p0, %p0)
}

%inner (p: (bf16[4,16])) -> (bf16[4,16]) {
  %p = (bf16[4,16]{1,0}) parameter(0)
  %q = s8[4]{0} custom-call(%p), custom_call_target="flash", frontend_attributes={kernel_metadata={
}}, metadata={op_name="f/q"}
  %ag = (bf16[1,16]{1,0}, bf16[4,16]{1,0}) all-gather-start(%x), channel_id=7, dimensions={0}
  %agd = bf16[4,16]{1,0} all-gather-done(%ag)
  ROOT %t = (bf16[4,16]{1,0}) tuple(%agd)
}

%outer (p: (bf16[4,16])) -> (bf16[4,16]) {
  %p = (bf16[4,16]{1,0}) parameter(0)
  %ar = f32[64]{0} all-reduce(%y), channel_id=3, to_apply=%sum
  ROOT %w = (bf16[4,16]{1,0}) while(%p), body=%inner, config={"known_trip_count":{"n":"24"}}
}

ENTRY %main (a: f32[8,4]) -> f32[8,4] {
  %a = f32[8,4]{1,0} parameter(0)
  %f = f32[8,4]{1,0} fusion(%a), kind=kLoop, calls=%fused_add
  %copy.2 = f32[8,4]{0,1} copy(%f)
  %w2 = (bf16[4,16]{1,0}) while(%t), condition=%c2, body=%outer
  ROOT %k = f32[8,4]{1,0} custom-call(%copy.2), custom_call_target="flash"
}
"""


@pytest.fixture
def read():
    return CompiledProgramText(TEXT, MemoryUse(0, 0, 0, 0, 0))


def test_collectives_are_listed_with_their_loops_and_bytes(read):
    gather, reduce = sorted(read.collectives, key=lambda one: one.kind)
    assert (gather.kind, gather.loops, gather.asynchronous) == ("all-gather", (0, 24), True)
    assert gather.shapes == (Shape("bf16", (4, 16)),)
    assert gather.bytes == 128
    assert (reduce.kind, reduce.loops, reduce.asynchronous) == ("all-reduce", (0,), False)
    assert reduce.bytes == 256


def test_results_inside_fusions_and_views_are_not_made(read):
    assert {one.name for one in read.made(least=128)} == {"f", "copy.2", "agd", "ar", "k"}


def test_what_a_gpu_starts_leaves_out_parts_of_fusions_and_views(read):
    found = {one.name: one.loops for one in read.launches}
    assert found == {"f": (), "copy.2": (), "k": (), "ar": (0,), "q": (0, 24), "ag": (0, 24)}


def test_an_operation_without_a_source_has_that_of_the_last_of_its_parts():
    text = TEXT.replace("add(%p0, %p0)", 'add(%p0, %p0), metadata={op_name="f/blocks/add"}')
    read = CompiledProgramText(text, MemoryUse(0, 0, 0, 0, 0))
    found = {one.name: read.source(one) for one in read.launches}
    assert (found["f"], found["copy.2"]) == ("f/blocks/add", "")


def test_kernels_and_aliases_are_counted(read):
    assert read.kernels == {"flash"}
    assert read.aliases == 2


@pytest.mark.parametrize(
    ("written", "shapes"),
    [
        # As XLA writes them for TPUs: operand, result, and two scalars of state.
        (
            "(bf16[8,4]{1,0:T(8,128)}, bf16[8,4]{1,0:T(8,128)}, u32[]{:S(2)}, u32[]{:S(2)})"
            " collective-permute-start",
            [(8, 4)],
        ),
        ("((f32[3], f32[5]), (f32[6], f32[10])) all-gather-start", [(6,), (10,)]),
        ("(f32[3]{0}, f32[5]{0}) all-reduce-start", [(3,), (5,)]),
        ("(f32[3]{0}, f32[5]{0}) all-reduce", [(3,), (5,)]),
        ("(f32[], f32[]) collective-permute-start", [()]),
    ],
)
def test_a_collective_that_starts_counts_its_results_alone(written, shapes):
    text = f"ENTRY %main (a: f32[1]) -> f32[4] {{\n  %c = {written}(%x), channel_id=7\n}}"
    (found,) = CompiledProgramText(text, MemoryUse(0, 0, 0, 0, 0)).collectives
    assert [shape.sizes for shape in found.shapes] == shapes


def test_collectives_of_one_channel_are_told_apart_by_their_sources():
    parts = [
        f'  %ag.{n} = f32[4]{{0}} all-gather(%p{n}), channel_id=1, metadata={{op_name="{source}"}}'
        for n, source in enumerate(("jvp()/all_gather", "transpose()/all_gather") * 2)
    ]
    text = "\n".join(["ENTRY %main (a: f32[1]) -> f32[4] {", *parts, "}"])
    assert len(CompiledProgramText(text, MemoryUse(0, 0, 0, 0, 0)).collectives) == 2
