// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/objects"
	"mustang/internal/service"
)

func scriptHooks() map[string]objects.Hook {
	return map[string]objects.Hook{
		"host": fromHost, "tohost": toHost, "own": fromOwn, "toown": toOwn, "netkit": fromNetkit, "tonetkit": toNetkit,
		"tun": fromTun, "totun": toTun, "uplink": fromUplink, "touplink": toUplink,
	}
}

// end returns NAME[:PORT][+|-]: a named end, perhaps with another port, or at the next or the previous address.
func (r *scriptRun) end(text string) netip.AddrPort {
	name, port, hasPort := strings.Cut(text, ":")
	base := strings.TrimRight(name, "+-")
	all, loopback, group, mdns := "0.0.0.0", "127.0.0.1", "224.0.0.5", "224.0.0.251"
	link, linka := "169.254.7.1", "169.254.7.2"
	if r.v6 {
		all, loopback, group, mdns, link, linka = "::", "::1", "ff02::5", "ff02::fb", ownLocal.String(), otherLocal.String()
	}
	end, ok := map[string]netip.AddrPort{
		"client": r.client, "backend": r.backend, "remote": r.remote, "service": r.service, "other": r.other,
		"outsider": r.outsider, "self": r.self(), "seen": r.seen(), "moved": r.moved,
		"loopback": netip.AddrPortFrom(netip.MustParseAddr(loopback), 80),
		"group":    netip.AddrPortFrom(netip.MustParseAddr(group), r.client.Port()),
		"link":     netip.AddrPortFrom(netip.MustParseAddr(link), 4000),
		"linka":    netip.AddrPortFrom(netip.MustParseAddr(linka), 5000),
		"mdns":     netip.AddrPortFrom(netip.MustParseAddr(mdns), 5353),
		"all":      netip.AddrPortFrom(netip.MustParseAddr(all), r.service.Port()),
		"nodes":    netip.MustParseAddrPort("[ff02::1]:0"),
	}[base]
	if !ok {
		end = netip.MustParseAddrPort(base + ":0")
	}
	addr := end.Addr()
	switch name[len(base):] {
	case "+":
		addr = addr.Next()
	case "-":
		addr = addr.Prev()
	}
	number := end.Port()
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		number = uint16(n)
		if err != nil {
			number = map[string]uint16{"sole": r.sole, "port": r.port}[port]
		}
	}
	return netip.AddrPortFrom(addr, number)
}

func (r *scriptRun) ends(text string) (src, dst netip.AddrPort) {
	from, to, _ := strings.Cut(text, ">")
	return r.end(from), r.end(to)
}

// parseService returns a service: FRONTEND [BACKEND[,STATE][,local][,weight=N]] [OPTION] ...; of two backends of one
// address the later one counts.
func (r *scriptRun) parseService(t *testing.T, words []string) service.Service {
	t.Helper()
	s := service.Service{Frontend: r.end(words[0]), Protocol: service.Protocol(r.proto)}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "maglev":
			s.Choice = service.Maglev
		case "affinity":
			s.Affinity = must(time.ParseDuration(value))(t)
		case "internal":
			s.InternalPolicy = service.Local
		case "external":
			s.ExternalPolicy = service.Local
		case "reset":
			s.OnRemove = service.Reset
		case "dsr":
			s.External, s.DSR = true, service.IPIP
		case "nodeport":
			s.NodePort, s.DSR = true, service.IPIP
		case "any":
			s.Protocol = service.Any
		case "ranges":
			for _, text := range strings.Split(value, ",") {
				s.SourceRanges = append(s.SourceRanges, r.prefix(text))
			}
		default:
			b := r.parseBackend(t, word)
			s.Backends = slices.DeleteFunc(s.Backends, func(o service.Backend) bool { return o.Addr == b.Addr })
			s.Backends = append(s.Backends, b)
		}
	}
	return s
}

func (r *scriptRun) parseBackend(t *testing.T, word string) service.Backend {
	t.Helper()
	parts := strings.Split(word, ",")
	b := service.Backend{Addr: r.end(parts[0]), Weight: 1}
	for _, part := range parts[1:] {
		if weight, ok := strings.CutPrefix(part, "weight="); ok {
			b.Weight = uint16(must(strconv.Atoi(weight))(t))
		} else if part == "local" {
			b.Local = true
		} else {
			b.State = map[string]service.State{"terminating": service.Terminating, "draining": service.Draining,
				"quarantined": service.Quarantined}[part]
			failIf(t, b.State == service.Active, "no state %q", part)
		}
	}
	return b
}

// prefix returns END[/BITS]; "/all" is any address, "/near" 8 bits less than the whole address.
func (r *scriptRun) prefix(text string) netip.Prefix {
	end, kind, _ := strings.Cut(text, "/")
	addr := r.end(end).Addr()
	bits := map[string]int{"": addr.BitLen(), "near": addr.BitLen() - 8, "all": 0}[kind]
	p, _ := addr.Prefix(bits)
	return p
}

// A packet is: first SRC>DST | next SRC>DST | echo SRC>DST | icmp:TYPE4/TYPE6 SRC>DST | nd:TYPE SRC>DST, with
// FIELD=VALUE behind it, and of an ICMP error "about" and the packet that it quotes.
type scriptPacket struct {
	sent  packet
	inner packet // the packet of the result, if sent is its tunnel
}

func (r *scriptRun) packet(t *testing.T, h objects.Hook, words []string) scriptPacket {
	t.Helper()
	outer := words
	about := slices.Index(words, "about")
	if about >= 0 {
		outer = words[:about]
	}
	p, tunnel := r.fields(t, outer)
	if about >= 0 {
		quoted, _ := r.fields(t, words[about+1:])
		quoted.ethDst = ""
		p.quote = &quoted
	}
	switch h.Point {
	case objects.AttachUplink:
		if h == fromUplink && p.ethSrc == "" {
			p = p.arriving("aa")
		} else if p.ethSrc == "-" {
			p.ethSrc = ""
		}
	case objects.AttachTun:
		p = p.without()
	}
	s := scriptPacket{p, p}
	if tunnel != nil {
		s.inner = p.arriving("aa")
		p.ethDst, p.ethSrc = "", ""
		s.sent = tunnel(p)
	}
	return s
}

func (r *scriptRun) fields(t *testing.T, words []string) (p packet, tunnel func(packet) packet) {
	t.Helper()
	src, dst := r.ends(words[1])
	switch kind, types, _ := strings.Cut(words[0], ":"); kind {
	case "first":
		p = r.first(src, dst)
	case "next":
		p = r.next(src, dst)
	case "echo":
		p = r.echo("hello")
		p.src, p.dst = src, dst
	case "icmp":
		four, six, _ := strings.Cut(types, "/")
		p = r.icmp(src.Addr(), dst.Addr(), uint8(must(strconv.Atoi(four))(t)), uint8(must(strconv.Atoi(six))(t)))
	case "nd":
		p = discovery(uint8(must(strconv.Atoi(types))(t)), own6, other6, "")
		p.src, p.dst = src, dst
	default:
		t.Fatalf("no packet %q", words)
	}
	outer := func(*packet) {}
	var to netip.Addr
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch number, _ := strconv.ParseUint(value, 0, 32); key {
		case "tunnel":
			to = r.end(value).Addr()
		case "cut": // the tunnel
			outer = func(p *packet) { p.payload = p.payload[:min(int(number), len(p.payload))] }
		case "tunnel-fragment":
			outer = func(p *packet) { p.fragment = &fragmentPart{id: 1, more: true, whole: p.payload} }
		case "tunnel-proto": // the other family's
			outer = func(p *packet) { p.proto = map[uint8]uint8{4: 41, 41: 4}[p.proto] }
		default:
			p = p.field(t, key, value, uint32(number))
		}
	}
	if !to.IsValid() {
		return p, nil
	}
	return p, func(p packet) packet { return r.tunnel(p, to).with(outer) }
}

// field returns p with another value of a field.
//
//revive:disable-next-line:argument-limit // t comes on top
func (p packet) field(t *testing.T, key, value string, number uint32) packet {
	t.Helper()
	switch key {
	case "flags":
		p.flags = 0
		for _, letter := range value {
			p.flags |= map[rune]uint8{'F': flagFIN, 'S': flagSYN, 'R': flagRST, 'P': flagPSH, 'A': flagACK}[letter]
		}
	case "chunk":
		p.flags = uint8(number)
	case "seq":
		p.seq = number
	case "ack":
		p.ack = number
	case "proto":
		p.proto = uint8(number)
	case "code4": // in IPv4
		if !p.v6() {
			p.icmpCode = uint8(number)
		}
	case "type": // of ICMP
		p.icmpType = uint8(number)
	case "hop-limit":
		p.hops = uint8(number)
	case "hops":
		p.mangle = header(byte(number))
	case "payload": // WORD[*TIMES]
		text, times, _ := strings.Cut(value, "*")
		n, _ := strconv.Atoi(times)
		p.payload = strings.Repeat(text, max(n, 1))
	case "options":
		p.options = int(number)
	case "ext": // KIND[+WORDS][!], ...: with an exclamation mark segments are left
		for _, e := range strings.Split(value, ",") {
			kind, size, _ := strings.Cut(strings.TrimSuffix(e, "!"), "+")
			k, _ := strconv.Atoi(kind)
			n, _ := strconv.Atoi(size)
			x := extension{kind: uint8(k), words: n}
			if strings.HasSuffix(e, "!") {
				x.segmentsLeft = 1
			}
			if p.v6() {
				p.extensions = append(p.extensions, x)
			}
		}
	case "fragment": // ID+OFFSET[m]: with an m more follow
		id, offset, _ := strings.Cut(strings.TrimSuffix(value, "m"), "+")
		n, _ := strconv.Atoi(id)
		at, _ := strconv.Atoi(offset)
		p.fragment = &fragmentPart{id: uint32(n), offset: at, more: strings.HasSuffix(value, "m"), whole: p.payload}
	case "bytes": // FROM-TO[@ID]: the fragment with these bytes of the payload
		span, id, _ := strings.Cut(value, "@")
		from, to, _ := strings.Cut(span, "-")
		p = p.part(must(strconv.Atoi(from))(t), must(strconv.Atoi(to))(t))
		if id != "" {
			p.fragment.id = uint32(must(strconv.Atoi(id))(t))
		}
	case "ether":
		p.ethType = uint16(must(strconv.ParseUint(value, 16, 16))(t))
	case "dst":
		p.ethDst = value
	case "src":
		p.ethSrc = value
	case "from": // as it comes in by the device of test runs
		p = p.arriving(value)
	case "bare":
		p.zeroChecksum = true
	case "quote":
		p.quoteBytes = int(number)
	case "first-byte":
		b := must(strconv.ParseUint(value, 16, 8))(t)
		p.mangle = func(ip []byte) { ip[0] = byte(b) }
	case "hidden":
		hideTransport(&p)
	case "lengthless":
		withoutLength(&p)
	default:
		t.Fatalf("no field %q", key)
	}
	return p
}

// packetLine runs programs on a packet. A result is VERDICT [SRC>DST] [MAC] [about SRC>DST] [: COUNTER ...]. With ends
// the packet has these; "MAC" is of the pod that it is delivered to, "@MAC" changes the destination alone, and
// "MAC/MAC" are both. VERDICT refusal is the answer of a service without backends, and pong that to an echo request,
// which "pong64" sends with 64 hops. The source "moved!" is the client with another port, "moved" from then on.
func (r *scriptRun) packetLine(t *testing.T, line string) {
	t.Helper()
	left, want, checked := strings.Cut(line, " -> ")
	words := strings.Fields(left)
	for _, name := range strings.Split(words[0], ",") {
		h, ok := scriptHooks()[name]
		if !ok {
			r.policyLine(t, name, words[1:], strings.Fields(want))
			continue
		}
		p := r.packet(t, h, words[1:])
		if !checked {
			r.send(t, h, p.sent)
			continue
		}
		result, counters, _ := strings.Cut(want, ": ")
		r.checkRun(t, h, p.sent.frame(), func(out []byte) wants { return r.result(p.inner, result, counters, out) })
	}
}

// result reads a result; out is the frame after the program.
//
//revive:disable-next-line:argument-limit // a result has a text, and what it is about
func (r *scriptRun) result(p packet, text, counters string, out []byte) wants {
	words := strings.Fields(text)
	w := wants{counts: once(strings.Fields(counters)...), action: map[string]uint32{"next": actionNext,
		"redirect": actionRedirect, "refusal": actionRedirect, "pong": actionRedirect, "pong64": actionRedirect,
		"drop": actionDrop}[words[0]]}
	switch words[0] {
	case "refusal":
		w.out = p.refusal()
	case "pong", "pong64":
		w.out = p.echoReply()
		w.out.mangle = nil
		if words[0] == "pong64" {
			w.out.mangle = header(64)
		}
	}
	words = words[1:]
	if len(words) > 1 && words[len(words)-2] == "about" {
		quote := *p.quote
		quote.src, quote.dst = r.ends(words[len(words)-1])
		p = p.about(quote)
		w.out, words = &p, words[:len(words)-2]
	}
	if len(words) == 0 {
		return w
	}
	if rest, ok := strings.CutPrefix(words[0], "moved!"); ok {
		l4 := 14 + map[bool]int{false: 20, true: 40}[r.v6]
		if r.moved = netip.AddrPortFrom(r.client.Addr(), binary.BigEndian.Uint16(out[l4:])); r.moved == r.client {
			r.moved = netip.AddrPortFrom(r.client.Addr(), 0) // which is wrong
		}
		words[0] = "moved" + rest
	}
	p.src, p.dst = r.ends(words[0])
	switch macs := strings.Join(words[1:], ""); {
	case strings.HasPrefix(macs, "@"):
		p.ethDst = macs[1:]
	case strings.Contains(macs, "/"):
		p.ethDst, p.ethSrc, _ = strings.Cut(macs, "/")
	case macs != "":
		p.noEthernet, p.ethDst, p.ethSrc = false, macs, "ee"
	}
	w.out = &p
	return w
}
