// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

// TestHeaders is the table of packets by their headers between Ethernet and transport.
func TestHeaders(t *testing.T) { runCases(t, objects.AttachHost, headerCases()) }

func headerCases() []translateCase {
	opened := once("new_connection", "forward", "redirect_peer")
	// translated sends a changed packet to a service, which must be translated all the same.
	translated := func(change func(*packet)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).with(change)
			w.check(t, fromHost, p, wants{actionRedirect, p.became(w.client, w.backend, "0a"), opened})
		}
	}
	// refused sends a changed packet to a service, which must pass unchanged or be dropped.
	refused := func(v6 bool, verdict uint32, counter string, change func(*packet)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			if v6 && !w.v6 {
				return
			}
			w.serve(t, w.service, w.backend)
			w.check(t, fromHost, w.first(w.client, w.service).with(change), wants{verdict, nil, once(counter)})
			w.check(t, toHost, w.first(w.client, w.service).with(change), wants{verdict, nil, once(counter)})
		}
	}
	extensions := func(list ...extension) func(*packet) {
		return func(p *packet) {
			if p.v6() {
				p.extensions = list
			}
		}
	}
	many := make([]extension, 9)
	for i := range many {
		many[i].kind = destinationOptions
	}
	return append(hidingCases(refused), []translateCase{
		{"IPv4 options", 0, translated(func(p *packet) { p.options = 3 })},
		{"all IPv4 options", 0, translated(func(p *packet) { p.options = 10 })},
		{"hop by hop", 0, translated(extensions(extension{kind: hopByHop}))},
		{"long options", 0, translated(extensions(extension{kind: hopByHop, words: 3}, extension{kind: destinationOptions,
			words: 30}))},
		{"routing at its end", 0, translated(extensions(extension{kind: routing, words: 2}))},
		{"atomic fragment", 0, translated(extensions(extension{kind: destinationOptions}, extension{kind: fragmentHeader}))},
		{"eight headers", 0, translated(extensions(many[:8]...))},
		{"nine headers", 0, refused(true, actionDrop, "drop_extensions", extensions(many...))},
		{"routing under way", 0, refused(true, actionNext, "passed",
			extensions(extension{kind: routing, words: 2, segmentsLeft: 1}))},
		{"BIG TCP", 0, translated(withoutLength)},
		{"BIG TCP with a jumbo option", 0, translated(func(p *packet) {
			extensions(extension{kind: hopByHop})(p)
			withoutLength(p)
		})},
		{"no IP", 0, refused(false, actionNext, "passed", func(p *packet) { p.ethType = 0x0806 })},
		{"VLAN", 0, refused(false, actionNext, "passed", func(p *packet) { p.ethType = 0x8100 })},
		{"multicast", 0, refused(false, actionNext, "passed", func(p *packet) { p.ethDst = "01" })},
		{"broadcast", 0, refused(false, actionNext, "passed", func(p *packet) { p.ethDst = "ff" })},
		{"wrong version", 0, refused(false, actionDrop, "drop_malformed", func(p *packet) {
			p.mangle = func(ip []byte) { ip[0] = 0x55 }
		})},
		{"short IPv4 header", 0, func(t *testing.T, w *world) {
			if !w.v6 {
				refused(false, actionDrop, "drop_malformed", func(p *packet) {
					p.mangle = func(ip []byte) { ip[0] = 0x44 }
				})(t, w)
			}
		}},
		{"cut off", 0, cutOff},
		{"a large packet", 0, translated(func(p *packet) { p.payload = strings.Repeat("mustang ", 180) })},
		{"another protocol to a pod", 0, func(t *testing.T, w *world) {
			p := w.next(w.client, w.backend).with(func(p *packet) { p.proto = protoGRE })
			w.gets(t, fromHost, p, "redirect client>backend 0a: redirect_peer")
		}},
		{"ping to a pod", 0, func(t *testing.T, w *world) {
			p := w.icmp(w.client.Addr(), w.backend.Addr(), 8, 128)
			w.check(t, fromHost, p, wants{actionRedirect, p.became(p.src, p.dst, "0a"), once("redirect_peer")})
		}},
		{"neighbour discovery to a pod", 0, func(t *testing.T, w *world) {
			if w.v6 {
				w.gets(t, fromHost, w.icmp(w.client.Addr(), w.backend.Addr(), 0, 135), "next: passed")
			}
		}},
	}...)
}

// hidingCases are packets that hide what they are. refused sends a changed one, which must be dropped.
func hidingCases(refused func(bool, uint32, string, func(*packet)) func(*testing.T, *world)) []translateCase {
	return []translateCase{
		{"first fragment ends within the transport header", 0, refused(false, actionDrop, "drop_malformed", hideTransport)},
		{"SYN and FIN", protoTCP, refused(false, actionDrop, "drop_malformed",
			func(p *packet) { p.flags |= flagSYN | flagFIN })},
		{"later fragment begins within the transport header", protoTCP, refused(false, actionDrop, "drop_malformed",
			func(p *packet) {
				p.fragment = &fragmentPart{id: 7, offset: 1}
			})},
	}
}

// hideTransport makes a first fragment of the packet that ends within its transport header, and leaves the rest of that
// behind it in the frame: there it says what the sender likes.
func hideTransport(p *packet) {
	p.fragment = &fragmentPart{id: 7, more: true, whole: p.payload}
	v6 := p.v6()
	p.mangle = func(ip []byte) {
		if v6 {
			binary.BigEndian.PutUint16(ip[4:], 8+7)
			return
		}
		binary.BigEndian.PutUint16(ip[2:], 20+7)
	}
}

// withoutLength sets the length field to 0, as in packets that are too large for it: in both families while the kernel
// has them whole, in IPv6 also with a jumbo option (RFC 2675).
func withoutLength(p *packet) {
	p.payload = strings.Repeat("mustang ", 180)
	v6, jumbo := p.v6(), len(p.extensions) > 0
	p.mangle = func(ip []byte) {
		if v6 {
			binary.BigEndian.PutUint16(ip[4:], 0)
			if jumbo {
				ip[42], ip[43] = 0xc2, 4
				binary.BigEndian.PutUint32(ip[44:], uint32(len(ip)-40))
			}
			return
		}
		binary.BigEndian.PutUint16(ip[2:], 0)
		binary.BigEndian.PutUint16(ip[10:], 0)
		binary.BigEndian.PutUint16(ip[10:], ^sum(ip[:20]))
	}
}

// cutOff cuts a packet at each byte of its headers. BPF_PROG_TEST_RUN refuses frames that are shorter than an IP header
// without options.
func cutOff(t *testing.T, w *world) {
	w.serve(t, w.service, w.backend)
	p := w.first(w.client, w.service).with(func(p *packet) { p.payload = "" })
	if w.v6 {
		p.extensions = []extension{{kind: hopByHop, words: 1}}
	} else {
		p.options = 2
	}
	frame, bare := p.frame(), 14+20
	if w.v6 {
		bare = 14 + 40
	}
	for n := bare; n < len(frame); n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w.checkFrame(t, fromHost, frame[:n], wants{actionDrop, nil, once("drop_malformed")})
		})
	}
	w.gets(t, fromHost, p, "redirect client>backend 0a: new_connection forward redirect_peer")
}

// icmp returns a message of type4 in IPv4 and of type6 in IPv6.
func (w *world) icmp(src, dst netip.Addr, type4, type6 uint8) packet {
	p := packet{src: netip.AddrPortFrom(src, 0), dst: netip.AddrPortFrom(dst, 0), proto: protoICMP, icmpType: type4}
	if w.v6 {
		p.proto, p.icmpType = protoICMPv6, type6
	}
	return p
}

// TestFragments is the table of fragmented packets.
func TestFragments(t *testing.T) { runCases(t, objects.AttachHost, fragmentCases()) }

func fragmentCases() []translateCase {
	return []translateCase{
		{"in order, there and back", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			first, later := w.parts(w.first(w.client, w.service))
			w.gets(t, fromHost, first, "redirect client>backend 0a: new_connection forward redirect_peer")
			w.gets(t, fromHost, later, "redirect client>backend 0a: forward redirect_peer")
			first, later = w.parts(w.next(w.backend, w.client))
			w.gets(t, fromHost, first, "redirect service>client 0c: reverse redirect_peer")
			w.gets(t, fromHost, later, "redirect service>client 0c: reverse redirect_peer")
		}},
		{"back from another node", 0, func(t *testing.T, w *world) {
			w.open(t, w.remote)
			first, later := w.parts(w.next(w.remote, w.client))
			w.gets(t, toHost, first, "next service>client: reverse passed")
			w.gets(t, toHost, later, "next service>client: reverse passed")
		}},
		{"straight to a pod", 0, func(t *testing.T, w *world) {
			first, later := w.parts(w.first(w.client, w.backend))
			w.gets(t, fromHost, first, "redirect client>backend 0a: redirect_peer")
			w.gets(t, fromHost, later, "redirect client>backend 0a: redirect_peer")
		}},
		{"without the first", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			_, later := w.parts(w.first(w.client, w.service))
			w.gets(t, fromHost, later, "next: unknown_fragment passed")
			w.gets(t, toHost, later, "next: unknown_fragment passed")
		}},
		{"of another packet", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			first, later := w.parts(w.first(w.client, w.service))
			w.send(t, fromHost, first)
			later.fragment.id++
			w.gets(t, fromHost, later, "next: unknown_fragment passed")
		}},
		{"ping", 0, func(t *testing.T, w *world) {
			p := w.icmp(w.client.Addr(), w.backend.Addr(), 8, 128)
			p.payload = strings.Repeat("ping", 10)
			for _, part := range []packet{p.part(0, 24), p.part(24, 40)} {
				w.check(t, fromHost, part, wants{actionRedirect, part.became(p.src, p.dst, "0a"), once("redirect_peer")})
			}
		}},
	}
}

// parts splits a packet into two fragments.
func (w *world) parts(p packet) (first, later packet) {
	p.payload = strings.Repeat("fragment", 10)
	return p.part(0, 32), p.part(32, 80)
}

// part returns the fragment with payload bytes from..to.
func (p packet) part(from, to int) packet {
	header := len(p.with(func(p *packet) { p.payload = "" }).transport())
	f := &fragmentPart{id: 77, whole: p.payload, more: to < len(p.payload)}
	if from > 0 {
		f.offset = (from + header + 7) / 8
	}
	p.payload, p.fragment = p.payload[from:to], f
	return p
}

// TestICMPErrors is the table of ICMP errors about translated packets.
func TestICMPErrors(t *testing.T) { runCases(t, objects.AttachHost, icmpErrorCases()) }

func icmpErrorCases() []translateCase {
	done := once("icmp_error", "redirect_peer")
	return []translateCase{
		{"from a router, for the client", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			for _, kinds := range [][2]uint8{{3, 1}, {3, 2}, {11, 3}, {12, 4}} {
				p := w.icmp(w.outsider.Addr(), w.client.Addr(), kinds[0], kinds[1]).about(w.next(w.client, w.backend))
				out := p.about(w.next(w.client, w.service)).became(p.src, p.dst, "0c")
				w.check(t, fromHost, p, wants{actionRedirect, out, done})
			}
		}},
		{"from a router, into the client's pod", 0, func(t *testing.T, w *world) {
			w.open(t, w.remote)
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(w.next(w.client, w.remote))
			out := p.about(w.next(w.client, w.service))
			w.check(t, toHost, p, wants{actionNext, &out, once("icmp_error", "passed")})
		}},
		{"from the backend itself", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.backend.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			out := p.about(w.next(w.client, w.service)).became(netip.AddrPortFrom(w.service.Addr(), 0), p.dst, "0c")
			w.check(t, fromHost, p, wants{actionRedirect, out, done})
		}},
		{"from the client, for the backend", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.client.Addr(), w.service.Addr(), 3, 1).about(w.next(w.service, w.client))
			out := p.about(w.next(w.backend, w.client)).became(p.src, netip.AddrPortFrom(w.backend.Addr(), 0), "0a")
			w.check(t, fromHost, p, wants{actionRedirect, out, done})
		}},
		{"hairpin", 0, func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			self := netip.AddrPortFrom(w.backend.Addr(), 40000)
			seen := netip.AddrPortFrom(w.service.Addr(), 40000)
			w.send(t, fromHost, w.first(self, w.service))
			p := w.icmp(w.backend.Addr(), w.service.Addr(), 3, 1).about(w.next(seen, w.backend))
			out := p.about(w.next(self, w.service)).became(netip.AddrPortFrom(w.service.Addr(), 0),
				netip.AddrPortFrom(self.Addr(), 0), "0a")
			w.check(t, fromHost, p, wants{actionRedirect, out, done})
		}},
		{"quoting eight bytes only", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			short := func(p packet) packet { p.quoteBytes = 8; return p }
			p := short(w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(w.next(w.client, w.backend)))
			out := short(p.about(w.next(w.client, w.service))).became(p.src, p.dst, "0c")
			w.check(t, fromHost, p, wants{actionRedirect, out, done})
		}},
		{"quoting a datagram without a checksum", service.UDP, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			bare := func(p packet) packet { p.zeroChecksum = true; return p }
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 2).about(bare(w.next(w.client, w.backend)))
			out := p.about(bare(w.next(w.client, w.service))).became(p.src, p.dst, "0c")
			w.check(t, fromHost, p, wants{actionRedirect, out, done})
		}},
		{"about no connection of ours", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.outsider))
			w.check(t, fromHost, p, wants{actionRedirect, p.became(p.src, p.dst, "0c"), once("redirect_peer")})
		}},
		{"for another than the quoted sender", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.outsider.Addr(), w.backend.Addr(), 3, 1).about(w.next(w.client, w.backend))
			w.check(t, fromHost, p, wants{actionRedirect, p.became(p.src, p.dst, "0a"), once("redirect_peer")})
		}},
		{"quoting too little", 0, func(t *testing.T, w *world) {
			w.open(t, w.backend)
			p := w.icmp(w.outsider.Addr(), w.client.Addr(), 3, 1).about(w.next(w.client, w.backend))
			p.quoteBytes = 4
			w.check(t, fromHost, p, wants{actionRedirect, p.became(p.src, p.dst, "0c"), once("redirect_peer")})
		}},
	}
}

// open opens a connection of the client to the service.
func (w *world) open(t *testing.T, backend netip.AddrPort) {
	t.Helper()
	w.serve(t, w.service, backend)
	w.send(t, fromHost, w.first(w.client, w.service))
}

// about returns the ICMP error with another quoted packet.
func (p packet) about(quote packet) packet {
	p.quote = &quote
	return p
}
