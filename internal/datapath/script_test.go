// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mustang/internal/datapath/flows"
	"mustang/internal/datapath/objects"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// A script is a table of packets in testdata/packets. A case begins with "== name [conditions]"; its lines run one
// after the other on a fresh world with both pods at one attach point. Lines before the first case run at the beginning
// of each. A line is a command, or a packet:
//
//	HOOK[,HOOK...] PACKET [-> RESULT]
//
// The hook's program runs on the packet. Its verdict, the frame after it and all counters must match the result;
// without a result the packet must not be dropped. scriptpacket_test.go has the forms of packets and results.
// Semicolons separate several packets of a row. "[tcp]" before a line restricts it, and "cpus" runs it on two CPUs.
// "times N" repeats the lines until "end" with another port. "let NAME TEXT" names a text, which "$NAME" inserts.
// "def NAME" ... "end" names lines, in which $1, $2 and $* are the words behind the name.
type script struct {
	setup  []string
	macros map[string][]string
	texts  map[string]string
	cases  []scriptCase
}

type scriptCase struct {
	name       string
	conditions []string
	lines      []string
}

func readScript(t testing.TB, name string) script {
	t.Helper()
	s := script{macros: map[string][]string{}, texts: map[string]string{}}
	macro := ""
	for line := range strings.Lines(string(must(os.ReadFile("testdata/packets/" + name + ".txt"))(t))) {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case macro != "" && line == "enddef":
			macro = ""
		case macro != "":
			s.macros[macro] = append(s.macros[macro], line)
		case word == "def":
			macro = rest
		case word == "let":
			name, text, _ := strings.Cut(rest, " ")
			s.texts["$"+name] = s.insert(text)
		case word == "==":
			c := scriptCase{name: rest}
			if i := strings.LastIndex(rest, " ["); i >= 0 {
				c.name, c.conditions = rest[:i], strings.Fields(strings.Trim(rest[i:], " []"))
			}
			s.cases = append(s.cases, c)
		case len(s.cases) == 0:
			s.setup = append(s.setup, line)
		default:
			c := &s.cases[len(s.cases)-1]
			c.lines = append(c.lines, line)
		}
	}
	return s
}

func (s script) insert(line string) string {
	for name, text := range s.texts {
		line = strings.ReplaceAll(line, name, text)
	}
	return line
}

// runScripts runs the cases of scripts for TCP and UDP in IPv4 and IPv6.
func runScripts(t *testing.T, at objects.AttachPoint, names ...string) {
	b := newBench(t)
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
			runScriptsIn(t, at, newWorld(b, family == "ipv6", uint8(protocol)), names...)
		}
	}
}

func runScriptsIn(t *testing.T, at objects.AttachPoint, in *world, names ...string) {
	for _, name := range names {
		s := readScript(t, name)
		for _, c := range s.cases {
			if !slices.ContainsFunc(c.conditions, func(c string) bool { return !in.meets(c) }) {
				t.Run(fmt.Sprintf("ipv6=%t/%s/%s", in.v6, service.Protocol(in.proto), c.name), func(t *testing.T) {
					w := *in
					w.reset(t, at)
					r := &scriptRun{world: &w, script: s, at: at}
					r.lines(t, slices.Concat(s.setup, c.lines))
				})
			}
		}
	}
}

// meets reports whether a world has a protocol or a family, or lacks one after an exclamation mark.
func (w *world) meets(condition string) bool {
	name, not := strings.CutPrefix(condition, "!")
	has := name == service.Protocol(w.proto).String() || name == map[bool]string{false: "v4", true: "v6"}[w.v6]
	return has != not
}

// meets reports the same of a line, for which "pod" is the attach point on the pod's own device.
func (r *scriptRun) meets(condition string) bool {
	if name, not := strings.CutPrefix(condition, "!"); name == "pod" {
		return (r.at == objects.AttachPod) != not
	}
	return r.world.meets(condition)
}

// scriptRun is the state of a case.
type scriptRun struct {
	*world
	script
	id    uint32         // of the service that was put last
	sole  uint16         // the port of the client's only backend
	port  uint16         // in "times"
	moved netip.AddrPort // the client, with the port that a program has given it
	at    objects.AttachPoint
	slots []objects.Slot // that were remembered
}

func (r *scriptRun) lines(t *testing.T, lines []string) {
	t.Helper()
	for i := 0; i < len(lines); i++ {
		if count, ok := strings.CutPrefix(lines[i], "times "); ok {
			end := i + slices.Index(lines[i:], "end")
			for n := range must(strconv.Atoi(count))(t) {
				r.port = uint16(40000 + n)
				r.lines(t, lines[i+1:end])
			}
			i = end
			continue
		}
		for line := range strings.SplitSeq(lines[i], "; ") {
			r.line(t, line)
		}
	}
}

func (r *scriptRun) line(t *testing.T, line string) {
	t.Helper()
	line = r.insert(line)
	if condition, rest, ok := strings.Cut(line, "] "); ok && line[0] == '[' {
		if !r.meets(condition[1:]) {
			return
		}
		line = rest
	}
	if rest, ok := strings.CutPrefix(line, "cpus "); ok {
		onCPUs(t, 2, func() { r.line(t, rest) })
		return
	}
	words := strings.Fields(line)
	if macro := r.macros[words[0]]; macro != nil {
		var pairs []string
		for i := range 3 {
			pairs = append(pairs, fmt.Sprint("$", i+1), strings.Join(words[min(i+1, len(words)):min(i+2, len(words))], ""))
		}
		words := strings.NewReplacer(append(pairs, "$*", strings.Join(words[1:], " "))...)
		expanded := make([]string, len(macro))
		for i := range macro {
			expanded[i] = words.Replace(macro[i])
		}
		r.lines(t, expanded)
		return
	}
	hook, _, _ := strings.Cut(words[0], ",")
	_, isHook := scriptHooks()[hook]
	if command := r.commands(t)[words[0]]; command != nil && !isHook {
		command(words[1:])
	} else {
		r.packetLine(t, line)
	}
	testkit.Require(t, !t.Failed(), "line %q", line)
}

func (r *scriptRun) serviceCommands(t *testing.T) map[string]func(args []string) {
	return map[string]func(args []string){
		"put": func(args []string) {
			_, r.id = must2(r.Services().Put(t.Context(), service.CLI, r.parseService(t, args)))(t)
		},
		"apply": func(args []string) { // the set of an owner
			var set []service.Service
			if len(args) > 1 {
				set = append(set, r.parseService(t, args[1:]))
			}
			owner := map[string]service.Owner{"cli": service.CLI, "agent": service.Agent}[args[0]]
			must(r.Services().Apply(t.Context(), owner, set))(t)
		},
		"delete": func(args []string) {
			key := service.Key{Frontend: r.end(args[0]), Protocol: service.Protocol(r.proto)}
			succeed(t, r.Services().Delete(t.Context(), service.CLI, key))
		},
	}
}

// commands are the lines that are not packets.
func (r *scriptRun) commands(t *testing.T) map[string]func(args []string) {
	number := func(text string) uint32 { return uint32(must(strconv.ParseUint(text, 10, 32))(t)) }
	all := r.policyCommands(t)
	maps.Copy(all, r.serviceCommands(t))
	maps.Copy(all, map[string]func(args []string){
		// store ID REVISION COUNT TOTAL TABLE: a row of the service
		"store": func(args []string) {
			var n [5]uint32
			for i := range n {
				n[i] = number(args[i])
			}
			r.store(t, objects.Service{Id: n[0], Revision: n[1], Count: uint16(n[2]), Total: uint16(n[3]), Table: n[4]})
		},
		// pod ID POINT MAC SEGMENT ADDRESS; segment "device" is the device of test runs
		"pod": func(args []string) {
			segment := strings.ReplaceAll(args[3], "device", "\x01")
			r.endpoint(t, pod{number(args[0]), objects.AttachPoint(args[1]), args[2], segment}, r.end(args[4]).Addr())
		},
		"unpod": func(args []string) { // deletes an address of a pod
			succeed(t, r.Endpoints().deleteRows([]Endpoint{{IP: r.end(args[0]).Addr()}}, nil))
		},
		"delete-pod": func(args []string) {
			succeed(t, r.Endpoints().Delete(t.Context(), number(args[0])))
		},
		"forget": func([]string) { r.forget(t) },
		"clear":  func([]string) { r.clear(t) },
		"evict":  func([]string) { r.evict(t) },
		"flush": func(args []string) { // the connections of a service
			must(r.ConnectionTable().Flush(t.Context(), flows.Filter{Service: r.end(args[0])}))(t)
		},
		"age": func(args []string) { r.age(t, must(time.ParseDuration(args[0]))(t)) },
		"opened-ago": func(args []string) { // connections were opened earlier
			ago := uint64(must(time.ParseDuration(args[0]))(t))
			r.ageAll(t, func(slot *objects.Slot) { slot.Opened -= ago })
		},
		// connections [CLIENT>SERVICE>BACKEND]: exactly that one is in the table
		"connections": func(args []string) {
			var want []flows.Connection
			for _, a := range args {
				ends := strings.Split(a, ">")
				client := r.end(ends[0])
				want = append(want, flows.Connection{Protocol: service.Protocol(r.proto), Client: client, Service: r.end(ends[1]),
					Source: client, Backend: r.end(ends[2]), ServiceID: r.id})
			}
			r.connected(t, want...)
		},
		"state": func(args []string) { // of the only connection
			list := must(r.Connections())(t)
			want, not := strings.CutPrefix(args[0], "!")
			failIf(t, len(list) != 1 || (list[0].State.String() == want) == not ||
				list[0].Protocol != service.Protocol(r.proto), "connections %v", list)
		},
		"open": func(args []string) { // the number of open connections
			equal(t, fmt.Sprint(must(r.objects.Slots.Open())(t)), args[0], "connections are open")
		},
		"recount":   func([]string) { r.recount(t, 1, 2) },
		"handshake": func([]string) { r.handshake(t, r.client, r.service, r.backend) },
		"random": func([]string) { // addresses that no other case has
			r.service = r.random()
			r.backend = netip.AddrPortFrom(r.backend.Addr(), r.random().Port())
		},
		"collide": func([]string) { r.other = r.collision(t) },
		"layer3": func([]string) { // for links without Ethernet headers
			r.tunAddresses()
			r.reset(t, objects.AttachTun)
		},
		"shares":           func(args []string) { r.shares(t, args) },
		"sole":             func(args []string) { r.wantSole(t, args) },
		"evicted":          func([]string) { r.evicted(t) },
		"cutoff":           func([]string) { r.cutOff(t) },
		"same-table":       func([]string) { r.sameTable(t) },
		"other-clients":    func([]string) { r.otherClients(t) },
		"affinity-timeout": func([]string) { r.affinityTimeout(t) },
		"chunkless":        func([]string) { r.chunkless(t) },
	})
	return all
}

// shares WHO COUNT PORT[:LEAST-MOST] ...: new connections of the pod or of the client outside go to the backends at
// these ports and no other, each gets some.
func (r *scriptRun) shares(t *testing.T, args []string) {
	t.Helper()
	count, sum := must(strconv.Atoi(args[1]))(t), 0
	got := r.sharesOf(t, args[0] == "outside", count)
	for _, arg := range args[2:] {
		text, limits, _ := strings.Cut(arg, ":")
		port := uint16(must(strconv.Atoi(text))(t))
		least, most := 1, count
		if limits != "" {
			must(fmt.Sscanf(limits, "%d-%d", &least, &most))(t)
		}
		failIf(t, got[port] < least || got[port] > most, "backends got %v", got)
		sum += got[port]
	}
	failIf(t, sum != count, "backends got %v", got)
}

// sole [same|other|PORT]: all connections of the client go to one backend: the same as before, another, or this one.
func (r *scriptRun) wantSole(t *testing.T, args []string) {
	t.Helper()
	was := r.sole
	r.sole = r.soleBackend(t)
	switch {
	case len(args) == 0:
	case args[0] == "same" || args[0] == "other":
		failIf(t, (r.sole == was) != (args[0] == "same"), "the backend was %d and is %d", was, r.sole)
	default:
		equal(t, fmt.Sprint(r.sole), args[0], "the backend")
	}
}
