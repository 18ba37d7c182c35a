package cmd

import (
	"strings"
	"testing"
)

// 1 is the answer no; whatever could not be asked is 2 and says what to try (N58).
func TestN58AnAnswerIsToldFromAQuestionThatCouldNotBeAsked(t *testing.T) {
	const shop = "../../examples/shop"
	for _, tt := range []struct {
		name string
		args string
		code int
		says string // on stderr
	}{
		{"a connection that is allowed", "policy explain -f " + shop + " frontend api http", 0, ""},
		{"a connection that is denied", "policy explain -f " + shop + " scanner api http", 1, ""},
		{"a pod that is not there", "policy explain -f " + shop + " scaner api http", 2, "scaner"},
		{"a folder that is not there", "policy explain -f ../../examples/shopp scanner api http", 2, "shopp"},
		{"a flag that is none", "policy explain --fil " + shop + " scanner api http", 2, "--help"},
		{"no difference", "policy diff " + shop + " " + shop, 0, ""},
		{"a folder to compare with that is not there", "policy diff " + shop + " ../../examples/shopp", 2, "shopp"},
		{"tests of a folder that is not there", "policy test ../../examples/shopp", 2, "shopp"},
		{"a table of a pod that is not there", "policy table " + shop + " --pod shop/apy", 2, "apy"},
		{"findings", "policy lint testdata/traps", 1, ""},
		{"no findings", "policy lint " + shop, 0, ""},
		{"lint of a folder that is not there", "policy lint ../../examples/shopp", 2, "shopp"},
		{"a command that is none", "polisy", 2, "polisy"},
		{"no agent", "--socket /nowhere/weir.sock endpoint list", 2, "weir-agent"},
		{"no agent to judge", "--socket /nowhere/weir.sock why a/b c/d:80", 2, "weir-agent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			code, _, errOut := runWeir(t, strings.Fields(tt.args)...)
			if code != tt.code || !strings.Contains(errOut, tt.says) {
				t.Errorf("exit code %d, want %d; stderr %q, want %q in it", code, tt.code, errOut, tt.says)
			}
		})
	}
}
