package v1

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

// Version is the API's version, major.minor. Another major number means that
// the two sides do not understand each other.
const Version = "1.0"

// Base is the path below which the API is served.
const Base = "/v1"

// Headers that both sides send.
const (
	VersionHeader  = "Weir-Api-Version" // API version of the sender
	SoftwareHeader = "Weir-Version"     // software version of the sender, for messages
)

// Spec is the OpenAPI document that gen/ was made from.
//
//go:embed openapi.yaml
var Spec []byte

// Major returns the part of an API version that must agree. It fails on text
// that is not two numbers with a dot.
func Major(version string) (int, error) {
	major, minor, ok := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	_, err2 := strconv.Atoi(minor)
	if !ok || err != nil || err2 != nil || n < 0 {
		return 0, fmt.Errorf("API version %q is not of the form major.minor", version)
	}
	return n, nil
}

// Compatible reports whether a peer with this API version can be talked to.
func Compatible(peer string) bool {
	theirs, err := Major(peer)
	if err != nil {
		return false
	}
	ours, err := Major(Version)
	return err == nil && ours == theirs
}
