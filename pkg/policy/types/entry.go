package types

import (
	"fmt"

	"github.com/weirnet/weir/pkg/identity"
	"github.com/weirnet/weir/pkg/types"
)

// Stage says which tiers a line of a policy map stands for. A packet is judged
// in StageAll; where a Pass decides there, in the stage that the entry names.
type Stage uint8

// Each stage holds the defaults of the direction too.
const (
	StageAll           Stage = iota // every tier
	StageBelowAdmin                 // what a Pass of the Admin tier leads to
	StageBelowBaseline              // the defaults alone
)

// Holds reports whether rules of a tier have a part in the stage.
func (s Stage) Holds(t Tier) bool { return t >= TierAdmin+Tier(s) && s != StageBelowBaseline }

// Key is a line of a policy map: which peers, which direction, which
// destination ports. The zero Identity is the wildcard peer.
type Key struct {
	Identity  identity.NumericIdentity
	Direction Direction
	Stage     Stage
	Proto     types.Proto // ProtoAny: every protocol, then PortBits is 0
	Port      uint16      // host byte order; the low 16-PortBits bits are 0
	PortBits  uint8       // leading bits of Port that must match, 0 to 16; 0: every port
}

// String prints "ingress 1001 TCP/8080/12", with * for a wildcard and the stage
// behind, if it is not the first.
func (k Key) String() string {
	peer := "*"
	if k.Identity != 0 {
		peer = fmt.Sprint(uint32(k.Identity))
	}
	port := "*"
	if k.PortBits > 0 {
		port = fmt.Sprint(k.Port)
		if k.PortBits < 16 {
			port += fmt.Sprintf("/%d", k.PortBits)
		}
	}
	s := fmt.Sprintf("%s %s %s/%s", k.Direction, peer, k.Proto, port)
	if k.Stage != StageAll {
		s += fmt.Sprintf(" stage %d", k.Stage)
	}
	return s
}

// Precedence is the strength of an entry; the bigger one wins. Layout, highest
// bits first: 24 bits of inverted tier and priority, then 8 bits of class.
type Precedence uint32

// Classes in the low byte of a precedence: a deny beats every redirect, a
// redirect every allow, and anything a user wrote beats the default of the
// direction. Rules of the tiers Admin and Baseline are all of ClassOrdered, as
// there the order decides and not the verdict.
const (
	ClassDefault  = 0   // default deny or "not isolated"
	ClassImplicit = 1   // the local node
	ClassAllow    = 2   // allow
	ClassOrdered  = 2   // Accept, Deny and Pass of an ordered tier
	ClassRedirect = 3   // allow through a proxy; 3 to 254 by listener priority
	ClassDeny     = 255 // deny
)

// MakePrecedence packs tier, priority (lower is stronger) and class.
func MakePrecedence(tier Tier, priority uint16, class uint8) Precedence {
	level := uint32(tier-TierAdmin)<<16 | uint32(priority)
	return Precedence((0xFFFFFF-level)<<8 | uint32(class))
}

// DefaultPrecedence is that of the default of a direction: the weakest of all.
// ImplicitPrecedence is that of the local node's allow: above every default and
// below whatever a user wrote, of every tier and priority.
const (
	DefaultPrecedence  Precedence = 0
	ImplicitPrecedence Precedence = ClassImplicit
)

// Entry is what a policy map says for a key.
type Entry struct {
	Precedence Precedence
	// Rank breaks ties of Precedence: the lower rank wins. It is the position
	// of the rule among the subject's rules in the order of RuleRef.Compare.
	Rank      uint32
	Rule      RuleID
	Verdict   Verdict
	Next      Stage  // of Pass: the stage that decides instead
	ProxyPort uint16 // host byte order; 0: no redirect
}

// Beats reports whether e decides where both e and o match.
func (e Entry) Beats(o Entry) bool {
	if e.Precedence != o.Precedence {
		return e.Precedence > o.Precedence
	}
	return e.Rank < o.Rank
}

// Decision is the verdict of one direction and the entry that made it.
type Decision struct {
	Verdict Verdict
	Rule    RuleID
	Key     Key // the entry that decided
	Found   bool
}
