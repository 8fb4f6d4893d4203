// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/testkit"
)

// parseRange reads "SUBNET [start=ADDR] [end=ADDR] [gw=ADDR] [not=PREFIX]...".
func parseRange(text string) Range {
	fields := strings.Fields(text)
	r := Range{Subnet: netip.MustParsePrefix(fields[0])}
	for _, field := range fields[1:] {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "start":
			r.Start = netip.MustParseAddr(value)
		case "end":
			r.End = netip.MustParseAddr(value)
		case "gw":
			r.Gateway = netip.MustParseAddr(value)
		case "not":
			r.Exclude = append(r.Exclude, netip.MustParsePrefix(value))
		}
	}
	return r
}

func parseSets(texts ...string) []RangeSet {
	var sets []RangeSet
	for _, text := range texts {
		var set RangeSet
		for _, part := range strings.Split(text, ",") {
			set = append(set, parseRange(part))
		}
		sets = append(sets, set)
	}
	return sets
}

// TestGivenOut lists the addresses of a set, from first to last.
func TestGivenOut(t *testing.T) {
	for _, tt := range []struct{ name, set, want string }{
		{"a subnet", "10.1.0.0/29", "10.1.0.2 10.1.0.3 10.1.0.4 10.1.0.5 10.1.0.6"},
		{"start and end", "10.1.0.0/24 start=10.1.0.10 end=10.1.0.12", "10.1.0.10 10.1.0.11 10.1.0.12"},
		{"start at the network, end at the broadcast address", "10.1.0.0/29 start=10.1.0.0 end=10.1.0.7",
			"10.1.0.2 10.1.0.3 10.1.0.4 10.1.0.5 10.1.0.6"},
		{"gateway in the middle", "10.1.0.0/29 gw=10.1.0.4", "10.1.0.1 10.1.0.2 10.1.0.3 10.1.0.5 10.1.0.6"},
		{"gateway elsewhere", "10.1.0.4/32 gw=169.254.1.1", "10.1.0.4"},
		{"exclusions, one over the start", "10.1.0.0/28 not=10.1.0.0/30 not=10.1.0.6/32 not=10.1.0.8/29",
			"10.1.0.4 10.1.0.5 10.1.0.7"},
		{"two addresses", "10.1.0.0/31", "10.1.0.1"},
		{"two addresses, IPv6", "fd00::/127", "fd00::1"},
		{"IPv6", "fd00::/125", "fd00::2 fd00::3 fd00::4 fd00::5 fd00::6 fd00::7"},
		{"IPv6, nearly all excluded", "fd00::/64 not=fd00::/65 not=fd00:0:0:0:8000::/66 end=fd00:0:0:0:c000::1",
			"fd00:0:0:0:c000:: fd00:0:0:0:c000::1"},
		{"the end of all addresses", "255.255.255.252/30", "255.255.255.254"},
		{"the end of all addresses, IPv6", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffc/126",
			"ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
		{"two ranges, an exclusion of the other one",
			"10.1.0.0/24 start=10.1.0.9 end=10.1.0.10, 10.1.0.0/24 start=10.1.0.20 end=10.1.0.21 not=10.1.0.9/32",
			"10.1.0.10 10.1.0.20 10.1.0.21"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			pools := testkit.Must(newPools(parseSets(tt.set)))(t)
			var got []string
			for addr := range addressesAfter(pools[0].free, netip.Addr{}) {
				got = append(got, addr.StringExpanded())
			}
			var want []string
			for _, field := range strings.Fields(tt.want) {
				want = append(want, netip.MustParseAddr(field).StringExpanded())
			}
			testkit.Check(t, strings.Join(got, " ") == strings.Join(want, " "), "gives out %s\nwant      %s", got, want)
		})
	}
}

// TestValidate has each mistake, and the text that the error must contain.
func TestValidate(t *testing.T) {
	for _, tt := range []struct {
		sets []string
		want string // "": valid
	}{
		{[]string{"10.1.0.0/24", "fd00::/64"}, ""},
		{[]string{"10.1.0.0/24 end=10.1.0.9,10.1.0.0/24 start=10.1.0.10"}, ""},
		{[]string{"fd00::/64 gw=fe80::1"}, ""},
		{[]string{"10.1.0.7/24"}, "the subnet 10.1.0.7/24 has host bits set; want 10.1.0.0/24"},
		{[]string{"::ffff:10.1.0.0/120"}, "without ::ffff"},
		{[]string{"10.1.0.0/24 start=10.2.0.1"}, "the start 10.2.0.1 is not in 10.1.0.0/24"},
		{[]string{"10.1.0.0/24 end=fd00::1"}, "the end fd00::1 is not in 10.1.0.0/24"},
		{[]string{"fd00::/64 start=fd00::1%eth0"}, "the start fd00::1%eth0 is not in fd00::/64"},
		{[]string{"10.1.0.0/24 start=10.1.0.9 end=10.1.0.8"}, "the start 10.1.0.9 is after the end 10.1.0.8"},
		{[]string{"10.1.0.0/24 gw=fd00::1"}, "the gateway fd00::1"},
		{[]string{"fd00::/64 gw=::ffff:10.1.0.1"}, "the gateway ::ffff:10.1.0.1"},
		{[]string{"fd00::/64 gw=fe80::1%eth0"}, "the gateway fe80::1%eth0"},
		{[]string{"10.1.0.0/24 not=10.2.0.0/24"}, "the exclusion 10.2.0.0/24 is not in 10.1.0.0/24"},
		{[]string{"10.1.0.0/24 not=10.0.0.0/8"}, "range 10.1.0.0/24: no address is left"},
		{[]string{"10.1.0.4/32"}, "range 10.1.0.4/32: no address is left"},
		{[]string{"10.1.0.0/24 end=10.1.0.1"}, "range 10.1.0.1-10.1.0.1 of 10.1.0.0/24: no address is left"},
		{[]string{"fd00::/64", "10.1.0.0/24,10.1.0.0/24 start=10.1.0.9"},
			"[1]: ranges 10.1.0.0/24 and 10.1.0.9-10.1.0.254 of 10.1.0.0/24 overlap"},
		{[]string{"10.1.0.0/16,10.1.2.0/24"}, "[0]: want one subnet and one gateway in all ranges of a set, got 10.1.0.0/16"},
		{[]string{"10.1.0.0/24 end=10.1.0.9,10.1.0.0/24 start=10.1.0.10 gw=10.1.0.9"}, "one gateway"},
		{[]string{"10.1.0.0/24", "10.2.0.0/24"}, "[1]: 10.2.0.0/24 is the second set of its family"},
		{nil, ": want at least one set"},
		{[]string{"10.1.0.0/24 end=10.1.0.9,10.1.0.0/24 start=10.1.0.10 not=10.1.0.0/28"},
			"[0][0]: range 10.1.0.1-10.1.0.9 of 10.1.0.0/24: no address is left"},
	} {
		err := Validate(parseSets(tt.sets...))
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%q: %v", tt.sets, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%q: error %v, want %q", tt.sets, err, tt.want)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%q: more than a line: %v", tt.sets, err)
		}
	}
	testkit.Fails(t, Validate([]RangeSet{{}}))
	testkit.Fails(t, Validate([]RangeSet{{{}}}))
	testkit.Fails(t, Validate([]RangeSet{{{Subnet: netip.MustParsePrefix("10.1.0.0/24"), Exclude: []netip.Prefix{{}}}}}))
}

// TestManyExclusions validates more exclusions than a configuration can have. Every second address is excluded, so none
// can be merged.
func TestManyExclusions(t *testing.T) {
	r := Range{Subnet: netip.MustParsePrefix("10.0.0.0/8")}
	addr := r.Subnet.Addr()
	const count = 100_000
	for range count {
		addr = addr.Next().Next()
		r.Exclude = append(r.Exclude, netip.PrefixFrom(addr, 32))
	}
	pools := testkit.Must(newPools([]RangeSet{{r}}))(t)
	if got := len(pools[0].free); got != count { // 10.0.0.1 is the gateway
		t.Errorf("%d intervals, want %d", got, count)
	}
}
