;; The least that a policy can be, written by hand: always the whole picture in f32; after a failure it gives up with an error.
(module
  (memory (export "memory") 2)
  (global $free (mut i32) (i32.const 4096))
  ;; A description: name, version, summary, no settings.
  (data (i32.const 256) "\00\02\00\00\05\00\00\00\10\02\00\00\05\00\00\00\20\02\00\00\15\00\00\00\08\00\00\00\00\00\00\00")
  (data (i32.const 512) "whole")
  (data (i32.const 528) "0.1.0")
  (data (i32.const 544) "Always the whole one.")
  (data (i32.const 576) "as always")
  (data (i32.const 592) "there is no other way")
  ;; ok(plan): whole in space and time, a batch of 1, uniform f32, channels last; why, from 576.
  (data (i32.const 1056) "\01\00\00\00\00\00\01\00\00\00\00\00\00\00\00\00\40\02\00\00\09\00\00\00")
  ;; error(text), from 592.
  (data (i32.const 1152) "\01\00\00\00\50\02\00\00\15\00\00\00")
  (func (export "cabi_realloc") (param $old i32) (param $old_size i32) (param $align i32) (param $size i32) (result i32)
    (global.set $free (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
    (global.get $free)
    (global.set $free (i32.add (global.get $free) (local.get $size))))
  (func (export "tilewright:policy/lifecycle@0.1.0#describe") (result i32) (i32.const 256))
  (func (export "tilewright:policy/lifecycle@0.1.0#configure") (param i32 i32) (result i32) (i32.const 384))
  (func (export "tilewright:policy/decoding-policy@0.1.0#decide") (param i32) (result i32)
    (global.set $free (i32.const 4096))
    (i32.const 1024))
  (func (export "tilewright:policy/decoding-policy@0.1.0#recover") (param i32) (result i32)
    (global.set $free (i32.const 4096))
    (i32.const 1152))
  (func (export "tilewright:policy/decoding-policy@0.1.0#learn") (param i32)
    (global.set $free (i32.const 4096))))
