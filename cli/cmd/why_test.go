package cmd

import "testing"

func TestWhyArguments(t *testing.T) {
	for _, tt := range []struct{ dst, to, port, proto string }{
		{"shop/api:http", "shop/api", "http", ""},
		{"shop/api:53/UDP", "shop/api", "53", "UDP"},
		{"203.0.113.7:80", "203.0.113.7", "80", ""},
		{"[2001:db8::1]:443/TCP", "2001:db8::1", "443", "TCP"},
		{"12:80", "12", "80", ""},
		{"shop/api/ICMP", "shop/api", "", "ICMP"},
		{"[2001:db8::1]/icmp", "2001:db8::1", "", "icmp"},
		{"[2001:db8::1]/ICMPv6", "2001:db8::1", "", "ICMPv6"},
		{"shop/api:EchoReply/ICMP", "shop/api", "EchoReply", "ICMP"},
		{"shop/api:0/ICMP", "shop/api", "0", "ICMP"},
	} {
		p, err := parseWhy("x/a", tt.dst)
		if err != nil {
			t.Errorf("%s: %v", tt.dst, err)
			continue
		}
		if p.from != "x/a" || p.to != tt.to || p.port != tt.port || p.proto != tt.proto {
			t.Errorf("%s: got %s %s %s", tt.dst, p.to, p.port, p.proto)
		}
	}
	for _, bad := range []string{"shop/api", "shop/api:", ":80", "[2001:db8::1", "[2001:db8::1]", "", "shop/api:/TCP"} {
		if p, err := parseWhy("x/a", bad); err == nil {
			t.Errorf("%q was taken as %+v", bad, p)
		}
	}
}
