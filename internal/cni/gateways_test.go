// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"mustang/internal/podlink"
	"mustang/internal/testkit"
)

// moved returns the configuration of a network in other subnets.
func moved(config []byte, from, to string) []byte {
	return []byte(strings.NewReplacer("10."+from+".", "10."+to+".", "fd00:"+from+":", "fd00:"+to+":").Replace(string(config)))
}

// TestSubnetsChange gives a network other subnets: the host keeps the gateways of before while a pod has an address of theirs, and no longer, as
// they may be another host's then.
func TestSubnetsChange(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		before := network("net", mode.Name(), "")
		after := moved(before, "113", "114")
		has := func(when string, first, second bool) {
			t.Helper()
			text := command(t, f.host, "ip -o addr show")
			for want, gateways := range map[string]bool{"10.113.0.1/": first, "fd00:113::1/": first, "10.114.0.1/": second, "fd00:114::1/": second} {
				if strings.Contains(text, want) != gateways {
					t.Errorf("%s: %s is there %t, want %t", when, want, !gateways, gateways)
				}
			}
		}
		p := f.added("a", before)
		has("at first", true, false)
		q := f.added("b", after)
		has("with pods of both", true, true)
		f.reachGateways(p, q)
		f.must(f.check(p))
		f.must(f.check(q))
		f.must(f.del(p))
		has("without pods of before", false, true)
		f.checkAndDelete(q)
		f.must(f.del(f.added("c", before)))
		has("back again", true, false)
		f.must(f.plugin.RetireGateways(f.host, "net", []netip.Prefix{netip.MustParsePrefix("10.114.0.0/24"), netip.MustParsePrefix("fd00:114::/64")}))
		has("without an ADD", false, false)
		p = f.added("d", before)
		has("in the end", true, false)
		f.checkAndDelete(p)
	})
}

// TestSubnetOfAnotherNetwork has a network leave a subnet that another one has by then, whose pods keep their gateway.
func TestSubnetOfAnotherNetwork(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		before := network("one", mode.Name(), "")
		after := moved(before, "114", "115")
		f.must(f.del(f.added("a", before)))
		p := f.added("b", bytes.ReplaceAll(before, []byte(`"one"`), []byte(`"two"`)))
		q := f.added("c", after)
		f.reachGateways(p, q)
		f.must(f.check(p))
		f.must(f.del(q))
		f.checkAndDelete(p)
	})
}

// TestSubnetAtAnotherBridge has a network leave a subnet that another one at a bridge of its own has by then: the gateway goes from the first bridge.
func TestSubnetAtAnotherBridge(t *testing.T) {
	t.Parallel()
	requireLink(t, "bridge")
	f := newFixture(t)
	before := network("one", "bridge", `,"bridge":"br-one"`)
	after := moved(before, "114", "115")
	f.must(f.del(f.added("a", before)))
	p := f.added("b", bytes.ReplaceAll(bytes.ReplaceAll(before, []byte(`"one"`), []byte(`"two"`)), []byte("br-one"), []byte("br-two")))
	q := f.added("c", after)
	f.reachGateways(p, q)
	f.must(f.del(p))
	f.must(f.del(q))
}

// TestSubnetOfFormerNetwork has a network leave a subnet that another one has had too, whose pods have all gone: the gateway goes.
func TestSubnetOfFormerNetwork(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	before := network("one", "veth", "")
	f.must(f.del(f.added("a", bytes.ReplaceAll(before, []byte(`"one"`), []byte(`"two"`)))))
	f.must(f.del(f.added("b", before)))
	f.must(f.plugin.RetireGateways(f.host, "one", []netip.Prefix{netip.MustParsePrefix("10.115.0.0/24"), netip.MustParsePrefix("fd00:115::/64")}))
	if text := command(t, f.host, "ip -o addr show"); strings.Contains(text, "10.114.0.1/") || strings.Contains(text, "fd00:114::1/") {
		t.Errorf("the gateway is there: %s", text)
	}
	p := f.added("c", bytes.ReplaceAll(before, []byte(`"one"`), []byte(`"two"`)))
	f.reachGateways(p)
	f.checkAndDelete(p)
}

// TestFormerSubnetOfAnotherNetwork has two networks share a subnet and leave it: the gateway stays until the last pod of either has gone.
func TestFormerSubnetOfAnotherNetwork(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		part := func(name, start string) []byte {
			return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":%q,"type":"mustang-cni","link":%q,"parent":"uplink","services":"tc",
				"ipam":{"type":"mustang","ranges":[[{"subnet":"10.113.0.0/24","rangeStart":"10.113.0.%s0","rangeEnd":"10.113.0.%[3]s9"}]]}}`, name, mode.Name(), start)
		}
		one, two := part("one", "1"), part("two", "2")
		p, q := f.added("a", one), f.added("b", two)
		f.must(f.del(f.added("c", moved(one, "113", "114"))))
		f.must(f.del(f.added("d", moved(two, "113", "114"))))
		f.must(f.del(q))
		f.reachGateways(p)
		f.checkAndDelete(p)
		if text := command(t, f.host, "ip -o addr show"); strings.Contains(text, "10.113.0.1/") {
			t.Errorf("the gateway is there: %s", text)
		}
	})
}

// TestSubnetResized makes the subnets of a network larger or smaller: the gateway is the same address. It stays for pods of before and after.
func TestSubnetResized(t *testing.T) {
	small4, large4 := `[{"subnet":"10.120.0.0/25"}]`, `[{"subnet":"10.120.0.0/24","rangeStart":"10.120.0.%d"}]`
	small6, large6 := `[{"subnet":"fd00:120::/80"}]`, `[{"subnet":"fd00:120::/64","rangeStart":"fd00:120::5:0:0:2"}]`
	far := fmt.Sprintf(large4, 200) // not in the small one
	for _, mode := range modes() {
		for _, c := range []struct{ name, first, second string }{
			{"larger", small4 + "," + small6, far + "," + large6},
			{"smaller", far + "," + large6, small4 + "," + small6},
			{"larger by IPv4", small4, fmt.Sprintf(large4, 20)},
			{"smaller by IPv4", far, small4},
		} {
			t.Run(mode.Name()+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				testkit.RequireMode(t, mode.Probe())
				newFixture(t).resize(mode, c.first, c.second)
			})
		}
	}
}

// resize adds pods of a network in some ranges, and then in others of another size.
func (f *fixture) resize(mode podlink.Mode, first, second string) {
	in := func(ranges string) []byte {
		return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"mustang-cni","link":%q,"parent":"uplink","services":"tc",
			"ipam":{"type":"mustang","ranges":[%s]}}`, mode.Name(), ranges)
	}
	f.must(f.del(f.added("a", in(first))))
	p := f.added("b", in(second)) // without pods of before
	f.reachGateways(p)
	f.checkAndDelete(p)
	p = f.added("c", in(first))
	q := f.added("d", in(second)) // with one
	f.reachGateways(p, q)
	if len(p.result.IPs) == 1 || !mode.Traits().Switched { // else the host lacks the IPv6 address with one of both lengths
		f.must(f.check(p))
		f.must(f.check(q))
	}
	f.must(f.del(p))
	f.reachGateways(q)
	f.checkAndDelete(q)
	p = f.added("e", in(first))
	f.must(f.check(p))
	f.reachGateways(p)
	f.must(f.del(p))
}

// TestSubnetAroundFormer moves a network into a subnet that contains the one before: the gateway of before is an address for pods then.
func TestSubnetAroundFormer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	in := func(ranges string) []byte {
		return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"mustang-cni","link":"veth","services":"tc","ipam":{"type":"mustang","ranges":[[%s]]}}`, ranges)
	}
	f.must(f.del(f.added("a", in(`{"subnet":"10.120.1.0/24"}`))))
	f.must(f.plugin.RetireGateways(f.host, "net", []netip.Prefix{netip.MustParsePrefix("10.120.0.0/16")}))
	p := f.added("b", in(`{"subnet":"10.120.0.0/16","rangeStart":"10.120.1.1","rangeEnd":"10.120.1.1"}`))
	f.reachGateways(p)
	f.checkAndDelete(p)
}

// TestRetireDuringAdd retires the gateways of a network while an ADD in their subnets runs, which has found the network complete: the pod has its gateway.
func TestRetireDuringAdd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	config := network("net", "veth", "")
	f.manyRecords(f.added("a", network("other", "veth", "")), 500)
	for i := range testkit.Repeats(20, 200) {
		f.must(f.del(f.added(fmt.Sprint("b", i), config))) // the network is complete
		p := f.pod(fmt.Sprint("c", i), config)
		retired := make(chan error, 1)
		f.plugin.After = func(step string) error {
			if step != "device" { // addresses are next, and then the network
				return nil
			}
			retire := *f.plugin
			retire.After = nil
			go func() {
				retired <- retire.RetireGateways(f.host, "net", []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")})
			}()
			time.Sleep(time.Duration(i%20) * 200 * time.Microsecond)
			return nil
		}
		err := f.add(p)
		f.plugin.After = nil
		f.must(<-retired)
		f.must(err)
		f.checkAndDelete(p)
	}
}

// TestRetireDuringAddOfAnother has a network leave a subnet while an ADD runs in another one that shares it, and has no pods yet: the pod has its gateway.
func TestRetireDuringAddOfAnother(t *testing.T) {
	for _, link := range crashModes {
		t.Run(link, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			one := network("one", link, "")
			two := strings.NewReplacer(`"one"`, `"two"`, `.0/24"`, `.0/24","rangeStart":"10.114.0.100"`, `::/64"`, `::/64","rangeStart":"fd00:114::100"`)
			f.manyRecords(f.added("a", network("other", "veth", "")), 500)
			for i := range testkit.Repeats(10, 100) {
				p := f.pod(fmt.Sprint("d", i), []byte(two.Replace(string(one))))
				f.must(f.del(f.added(fmt.Sprint("b", i), one)))
				if i > 0 { // the network is complete; the first time it is not there
					f.must(f.del(f.added(fmt.Sprint("c", i), p.request.Config)))
				}
				retired := make(chan error, 1)
				retire := *f.plugin
				go func() {
					retired <- retire.RetireGateways(f.host, "one", []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00:1::/64")})
				}()
				time.Sleep(time.Duration(i%10) * 2 * time.Millisecond)
				err := f.add(p)
				f.must(<-retired)
				f.must(err)
				f.checkAndDelete(p)
			}
		})
	}
}

// manyRecords gives a network many records, as of a node with many pods: reading all takes a while.
func (f *fixture) manyRecords(p *pod, count int) {
	path := f.plugin.records().Path("other", p.request.owner())
	data, err := os.ReadFile(path)
	f.must(err)
	for i := range count {
		f.must(os.WriteFile(strings.Replace(path, "/a@", fmt.Sprintf("/a%d@", i), 1), data, 0o600))
	}
}

// TestOneFamilyChanges gives a network another subnet in one family: pods of before and after keep both gateways.
func TestOneFamilyChanges(t *testing.T) {
	eachMode(t, func(t *testing.T, f *fixture, mode podlink.Mode) {
		before := network("net", mode.Name(), "")
		p := f.added("a", before)
		q := f.added("b", bytes.ReplaceAll(before, []byte("10.113."), []byte("10.114.")))
		f.reachGateways(p, q)
		f.must(f.check(p))
		f.must(f.check(q))
		f.must(f.del(p))
		f.checkAndDelete(q)
	})
}

// TestMasqueradeOfFormerSubnet has a network leave its subnets: they are masqueraded while a pod has an address of theirs, and no longer, as they may
// be another host's then, whose pods would reach this host's by an address of the host.
func TestMasqueradeOfFormerSubnet(t *testing.T) {
	for _, links := range [][2]string{{"veth", "veth"}, {"veth", "bridge"}} {
		t.Run(links[0]+" to "+links[1], func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			has := func(when string, before, after bool) {
				t.Helper()
				rules := command(t, f.host, "nft list ruleset")
				for subnet, want := range map[string]bool{"10.113.0.0/24": before, "fd00:113::/64": before, "10.114.0.0/24": after, "fd00:114::/64": after} {
					if strings.Contains(rules, "saddr "+subnet+" ") != want {
						t.Errorf("%s: %s is masqueraded %t, want %t: %s", when, subnet, !want, want, rules)
					}
				}
			}
			after := moved(network("net", links[1], `,"masquerade":true`), "113", "114")
			p := f.added("a", network("net", links[0], `,"masquerade":true`))
			q := f.added("b", after)
			has("with pods of both", true, true)
			f.must(f.del(p))
			has("without pods of before", false, true)
			f.must(f.check(q))
			f.must(f.del(f.added("c", after)))
			has("with another pod", false, true)
			elsewhere := []netip.Prefix{netip.MustParsePrefix("10.115.0.0/24"), netip.MustParsePrefix("fd00:115::/64")}
			f.must(f.plugin.RetireGateways(f.host, "net", elsewhere))
			has("with a pod of a subnet that is gone", false, true)
			f.must(f.del(q))
			has("without pods", false, false)
			f.must(f.del(f.added("d", after)))
			has("with an ADD", false, true)
			f.must(f.plugin.RetireGateways(f.host, "net", elsewhere))
			has("without an ADD", false, false)
		})
	}
}

// TestMasqueradeOfLargerSubnet makes a subnet larger while it has pods: among all of its pods nothing is masqueraded.
func TestMasqueradeOfLargerSubnet(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	in := func(more string) []byte {
		return fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"net","type":"mustang-cni","link":"veth","masquerade":true,"services":"tc",
			"ipam":{"type":"mustang","ranges":[[{"subnet":%s}]]}}`, more)
	}
	p := f.added("a", in(`"10.120.0.0/25"`))
	q := f.added("b", in(`"10.120.0.0/24","rangeStart":"10.120.0.200"`))
	if rules := command(t, f.host, "nft list table inet mustang-cni-net"); strings.Contains(rules, "10.120.0.0/25") || !strings.Contains(rules, "10.120.0.0/24") {
		t.Errorf("want a rule for 10.120.0.0/24 alone: %s", rules)
	}
	f.reach(p.Namespace, q.Namespace, q.ips()[0])
	f.must(f.check(p))
	f.must(f.check(q))
	f.must(f.del(p))
	f.must(f.del(q))
}
