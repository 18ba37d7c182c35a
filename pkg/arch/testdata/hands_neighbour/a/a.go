package a

import _ "example.com/m/b"

import _ "example.com/m/pkg/bpf"
