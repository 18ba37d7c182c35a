package link

import "testing"

func TestHostNamesFitTheKernelAndDifferByInterface(t *testing.T) {
	a, b := HostName("c1", "eth0"), HostName("c1", "eth1")
	// printf 'c1:eth0' | sha256sum
	if a != "lxc18b8fe0ca3d6" || a == b || !IsHostName(a) {
		t.Errorf("names %s and %s", a, b)
	}
}

func TestNewMACsAreLocalUnicastAndDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		m := NewMAC()
		if m[0]&3 != 2 {
			t.Fatalf("%s is not a locally administered unicast address", m)
		}
		seen[m.String()] = true
	}
	if len(seen) != 1000 {
		t.Errorf("%d different ones of 1000", len(seen))
	}
}
