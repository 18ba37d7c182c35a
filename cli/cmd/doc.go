// Package cmd holds the commands of weir, one noun a file.
//
// # What
//
// Each command asks the agent (pkg/client), reads a pinned map ("weir bpf") or
// drives a lab (pkg/lab), and prints a table for people or JSON for programs.
//
// # Neighbours
//
// cli/main.go calls Execute; nothing else imports it.
//
// # Rules
//
// A command decides nothing about policy: it prints what the agent answered.
// Exit codes: 0 done, 1 the answer is no or something failed, 2 wrong usage,
// 3 no agent to talk to. No colours and no moving output, ever, so NO_COLOR
// holds without being asked.
//
// # Try it
//
//	go test ./cli/cmd
//	bin/weir status
package cmd
