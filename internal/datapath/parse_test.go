// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestHeaders is the table of headers between Ethernet and transport, and of packets that are not for services.
func TestHeaders(t *testing.T) { runCases(t, hostSide, headerCases()) }

func headerCases() []translateCase {
	opened := once("new_connection", "forward", "redirect_peer")
	// to a service, with a change to the packet that must not matter.
	translated := func(change func(*packet)) func(*testing.T, *world) {
		return func(t *testing.T, w *world) {
			w.serve(t, w.service, w.backend)
			p := w.first(w.client, w.service).with(change)
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.client, w.backend, "0a"), opened})
		}
	}
	// to a service, with a change that makes it none of our business, or bad.
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
	return []translateCase{
		{"IPv4 options", 0, translated(func(p *packet) { p.options = 3 })},
		{"all IPv4 options", 0, translated(func(p *packet) { p.options = 10 })},
		{"hop by hop", 0, translated(extensions(extension{kind: hopByHop}))},
		{"long options", 0, translated(extensions(extension{kind: hopByHop, words: 3}, extension{kind: destinationOptions, words: 30}))},
		{"routing at its end", 0, translated(extensions(extension{kind: routing, words: 2}))},
		{"atomic fragment", 0, translated(extensions(extension{kind: destinationOptions}, extension{kind: fragmentHeader}))},
		{"eight headers", 0, translated(extensions(many[:8]...))},
		{"nine headers", 0, refused(true, verdictDrop, "drop_extensions", extensions(many...))},
		{"routing under way", 0, refused(true, verdictNext, "passed", extensions(extension{kind: routing, words: 2, segmentsLeft: 1}))},
		{"no IP", 0, refused(false, verdictNext, "passed", func(p *packet) { p.ethType = 0x0806 })},
		{"VLAN", 0, refused(false, verdictNext, "passed", func(p *packet) { p.ethType = 0x8100 })},
		{"multicast", 0, refused(false, verdictNext, "passed", func(p *packet) { p.ethDst = "01" })},
		{"broadcast", 0, refused(false, verdictNext, "passed", func(p *packet) { p.ethDst = "ff" })},
		{"wrong version", 0, refused(false, verdictDrop, "drop_malformed", func(p *packet) {
			p.mangle = func(ip []byte) { ip[0] = 0x55 }
		})},
		{"short IPv4 header", 0, func(t *testing.T, w *world) {
			if !w.v6 {
				refused(false, verdictDrop, "drop_malformed", func(p *packet) {
					p.mangle = func(ip []byte) { ip[0] = 0x44 }
				})(t, w)
			}
		}},
		{"cut off", 0, cutOff},
		{"a large packet", 0, translated(func(p *packet) { p.payload = strings.Repeat("mustang ", 180) })},
		{"another protocol to a pod", 0, func(t *testing.T, w *world) {
			p := w.next(w.client, w.backend).with(func(p *packet) { p.proto = protoSCTP })
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.client, w.backend, "0a"), once("redirect_peer")})
		}},
		{"ping to a pod", 0, func(t *testing.T, w *world) {
			p := w.icmp(w.client.Addr(), w.backend.Addr(), 8, 128)
			w.check(t, fromHost, p, wants{verdictRedirect, p.became(p.src, p.dst, "0a"), once("redirect_peer")})
		}},
		{"neighbour discovery to a pod", 0, func(t *testing.T, w *world) {
			if w.v6 {
				w.check(t, fromHost, w.icmp(w.client.Addr(), w.backend.Addr(), 0, 135), wants{verdictNext, nil, once("passed")})
			}
		}},
	}
}

// cutOff cuts a packet at each byte of its headers. The kernel takes no frame for a test that is shorter than a bare IP
// header.
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
			w.checkFrame(t, fromHost, frame[:n], wants{verdictDrop, nil, once("drop_malformed")})
		})
	}
	w.check(t, fromHost, p, wants{verdictRedirect, p.became(w.client, w.backend, "0a"),
		once("new_connection", "forward", "redirect_peer")})
}

// icmp is a message of one type in IPv4 and another in IPv6.
func (w *world) icmp(src, dst netip.Addr, type4, type6 uint8) packet {
	p := packet{src: netip.AddrPortFrom(src, 0), dst: netip.AddrPortFrom(dst, 0), proto: protoICMP, icmpType: type4}
	if w.v6 {
		p.proto, p.icmpType = protoICMPv6, type6
	}
	return p
}
