package policy_test

import (
	"math/rand"
	"testing"

	"pgregory.net/rapid"
)

// worlds are seeds that draw whole worlds: rapid reads its choices from the
// bytes, and too few of them make none.
func worlds(f *testing.F) {
	for seed := range int64(8) {
		b := make([]byte, 4<<10)
		rand.New(rand.NewSource(seed)).Read(b)
		f.Add(b)
	}
}

// FuzzMapStateDecidesAsTheOracle is the property of the same name, with the
// choices made by the fuzzer: it looks for worlds that reach new code.
func FuzzMapStateDecidesAsTheOracle(f *testing.F) {
	worlds(f)
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		compare(t, newCluster(genWorld(t, rapid.Bool().Draw(t, "distinct")), genPolicies(t), genMode(t)))
	}))
}
