package testfile

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThreeLongListsAreRefused(t *testing.T) {
	list := "[" + strings.Repeat("10.9.9.9, ", 999) + "10.9.9.9]"
	text := strings.NewReplacer("[lab/probe, customer]", list, "[shop/db, 10.9.9.9]", list).Replace(good)
	_, err := read(text)
	require.ErrorContains(t, err, "dir/shop_test.yaml:12: PolicyTest shop: expect[1]: asks for more than 100000 connections")
}
