// SPDX-License-Identifier: Apache-2.0

// Command k8s runs a real Kubernetes cluster in namespaces of this machine, with Mustang as its only network, and
// Kubernetes' own specs of networks on it. It needs root, and builds missing parts from Go modules and Debian
// packages (cluster.Build).
//
//	go build -o build/ ./test/k8s
//	build/k8s test conformance                               # one node, veth, both families
//	build/k8s -link bridge,macvlan -family ipv4,ipv6 -nodes one,native,vxlan test conformance
//	build/k8s -focus 'Services should serve a basic' test
//	build/k8s -nodes vxlan -- kubectl get pods -A            # a command in node 1, then all is removed
//	build/k8s up                                             # until it is interrupted
//	build/k8s -nodes native kill 100                         # kill -9 of the agents under 500 connections a second
//	build/k8s -nodes native multus macvlan                   # a second network for pods, by Multus
//	build/k8s kubeadm                                        # docs/kubernetes.md with kubeadm, on two nodes
//	build/k8s versions                                       # versions of ClusterNetworkPolicy go while a policy denies
//	build/k8s -nodes native netpol-api v1beta1               # the conformance tests of network-policy-api
//	build/k8s -nodes vxlan migrate beside                        # from flannel and kube-proxy to Mustang, and back
//	build/k8s peers -time 1h -o docs/peers.md                # other networks beside Mustang, measured in turns
//	build/k8s advise flannel-vxlan                           # what advise predicts on it, beside a Mustang cluster
//
// It takes the image and the manifest of `make image` and `make manifest`. Each list of flags means a cluster for each
// combination, one after the other. test runs a smoke test first, then the specs; -record keeps how they ended, and
// `k8s table` writes the tables of test/k8s/specs.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mustang/test/k8s/internal/cluster"
)

// Exit codes.
const (
	exitFailed = 1
	exitMisuse = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	os.Exit((&runner{stdout: os.Stdout, stderr: os.Stderr, selection: cluster.Selection{Procs: 4}}).main(ctx, os.Args[1:]))
}

// runner is a command line.
type runner struct {
	stdout, stderr        io.Writer
	links, families, node string
	cluster               cluster.Options
	selection             cluster.Selection
	cache, record         string
	time                  time.Duration
	args                  []string // without a command for a node
	failed                bool
}

const usage = `usage: k8s [FLAGS] build | up | -- COMMAND [ARGUMENT...]
       k8s [FLAGS] test [GROUP]
       k8s [FLAGS] kill TIMES
       k8s [-cache DIRECTORY] [-dir DIRECTORY] kubeadm
       k8s [FLAGS] versions
       k8s [FLAGS] multus LINK
       k8s [FLAGS] -nodes native|vxlan|three netpol-api v1beta1|v1alpha2
       k8s [-record FILE] table DOCUMENT
       k8s [FLAGS] -nodes native|vxlan migrate beside|network
       k8s [FLAGS] peers [-peers LIST] [-time TIME] [-o DOCUMENT]
       k8s [FLAGS] [-time TIME] advise NETWORK

Groups of specs: conformance, others, netpol, short. Without a group: those of -focus and -skip, or the smoke test alone.

Flags:
`

// flags returns the flags of all commands.
func (r *runner) flags() *flag.FlagSet {
	flags := flag.NewFlagSet("k8s", flag.ContinueOnError)
	flags.SetOutput(r.stderr)
	flags.Usage = func() {
		fmt.Fprint(r.stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&r.links, "link", "veth", "link `modes` of pods, a list with commas")
	flags.StringVar(&r.families, "family", "dual", "`families` of addresses, of ipv4, ipv6 and dual")
	flags.StringVar(&r.node, "nodes", "one",
		"`nodes`, of one, three, and native and vxlan: two nodes, by what joins their pods")
	flags.StringVar(&r.selection.Focus, "focus", "", "test, netpol-api: `pattern` of the names of specs to run")
	flags.StringVar(&r.selection.Skip, "skip", "", "test: `pattern` of the names of specs not to run")
	flags.DurationVar(&r.selection.Timeout, "timeout", 40*time.Minute, "test: how long the specs of a cluster may take")
	flags.DurationVar(&r.time, "time", 4*time.Minute, "advise: how long to measure each cluster")
	flags.StringVar(&r.cache, "cache", "/var/cache/mustang/k8s", "`directory` that keeps what is built")
	flags.StringVar(&r.cluster.Dir, "dir", "build/k8s-cluster",
		"`directory` for the files of the cluster, and for its logs, which stay")
	flags.StringVar(&r.record, "record", "", "test: `file` that keeps how specs of a group ended")
	return flags
}

// main runs a command line and returns the exit code.
func (r *runner) main(ctx context.Context, args []string) int {
	flags := r.flags()
	split := slices.Index(args, "--")
	own := args
	if split >= 0 {
		own = args[:split]
	}
	if err := flags.Parse(own); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return exitMisuse
	}
	command, group := flags.Arg(0), flags.Arg(1)
	_, known := groups[group]
	times, timesErr := strconv.Atoi(group)
	var err error
	switch {
	case split >= 0 && flags.NArg() == 0 && split+1 < len(args):
		err = r.clusters(ctx, func(c *cluster.Cluster) error { return r.command(ctx, c, args[split+1:]) })
	case split >= 0:
		flags.Usage()
		return exitMisuse
	case command == "table" && flags.NArg() == 2 && r.record != "":
		err = r.table(group)
	case command == "kill" && flags.NArg() == 2 && timesErr == nil && times > 0:
		err = r.clusters(ctx, func(c *cluster.Cluster) error { return r.kill(c, times) })
	case command == "versions" && flags.NArg() == 1:
		err = r.clusters(ctx, func(c *cluster.Cluster) error { r.versions(c); return nil })
	case command == "kubeadm" && flags.NArg() == 1:
		r.links, r.families, r.node, r.cluster.ByKubeadm = "auto", "ipv4", "native", true // what the page has
		err = r.clusters(ctx, func(c *cluster.Cluster) error { r.kubeadm(c); return nil })
	case command == "multus" && flags.NArg() == 2:
		err = r.clusters(ctx, func(c *cluster.Cluster) error { r.multus(c, group); return nil })
	case command == "netpol-api" && flags.NArg() == 2 && slices.Contains(apiVersions, group) &&
		(r.record == "" || r.selection.Focus == "") &&
		!strings.Contains(r.node, "one"): // two of its pods share a port of nodes
		err = r.clusters(ctx, func(c *cluster.Cluster) error { return r.netpolAPI(ctx, c, group) })
	case command == "migrate" && flags.NArg() == 2 && (group == "beside" || group == "network") &&
		(r.node == "native" || r.node == "vxlan"):
		err = r.migrate(ctx, group == "network")
	case command == "peers":
		r.args = own
		o, ok := r.comparisonOf(flags.Args()[1:])
		if !ok {
			return exitMisuse
		}
		err = r.compare(ctx, o)
	case command == "advise" && flags.NArg() == 2:
		err = r.advise(ctx, group)
	case command == "build" && flags.NArg() == 1:
		err = r.build(ctx)
	case command == "up" && flags.NArg() == 1:
		err = r.clusters(ctx, func(c *cluster.Cluster) error { return r.up(ctx, c) })
	case command == "test" && (flags.NArg() == 1 && r.record == "" || flags.NArg() == 2 && known &&
		r.selection.Focus == ""):
		err = r.clusters(ctx, func(c *cluster.Cluster) error { return r.test(ctx, c, group) })
	default:
		flags.Usage()
		return exitMisuse
	}
	if err != nil {
		fmt.Fprintln(r.stderr, "k8s:", err)
		return exitFailed
	}
	if r.failed {
		return exitFailed
	}
	return 0
}

// build builds missing parts.
func (r *runner) build(ctx context.Context) (err error) {
	if r.cache, err = filepath.Abs(r.cache); err != nil {
		return err
	}
	r.cluster.Programs, err = cluster.Build(ctx, "test/k8s", r.cache, r.stderr)
	if err == nil && r.cluster.ByKubeadm {
		err = r.cluster.Programs.Kubeadm(ctx, "test/k8s", r.stderr)
	}
	return err
}

// paths sets the paths of what a cluster is made of, and builds missing parts.
func (r *runner) paths(ctx context.Context) error {
	r.cluster.Image, r.cluster.Manifest = "build/mustang-image.tar", "deploy/mustang.yaml"
	r.cluster.Chart, r.cluster.Helm, r.cluster.Page = "packaging/chart", "build/helm", "docs/kubernetes.md"
	r.cluster.Program = filepath.Join("build/programs", runtime.GOARCH, "mustang") // as it is in the image
	for _, path := range []*string{&r.cluster.Dir, &r.cluster.Image, &r.cluster.Manifest, &r.cluster.Program,
		&r.cluster.Chart, &r.cluster.Helm, &r.cluster.Page} {
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return r.build(ctx)
}

// clusters calls do with a cluster for each combination of flags, one after the other.
func (r *runner) clusters(ctx context.Context, do func(*cluster.Cluster) error) error {
	var setups []cluster.Setup
	for link := range strings.SplitSeq(r.links, ",") {
		for family := range strings.SplitSeq(r.families, ",") {
			for nodes := range strings.SplitSeq(r.node, ",") {
				s := cluster.Setup{Link: link, Family: family, Nodes: nodes}
				if err := s.Validate(); err != nil {
					return err
				}
				setups = append(setups, s)
			}
		}
	}
	if err := r.paths(ctx); err != nil {
		return err
	}
	for _, s := range setups {
		r.cluster.Setup = s
		start := time.Now()
		c, err := cluster.Start(ctx, r.cluster)
		if err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
		fmt.Fprintf(r.stderr, "%v: nodes are ready after %.0f s\n", s, time.Since(start).Seconds())
		if err := errors.Join(do(c), c.Close()); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
	}
	return nil
}

// command runs a command in node 1.
func (r *runner) command(ctx context.Context, c *cluster.Cluster, args []string) error {
	cmd := c.Command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, r.stdout, r.stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) { // it prints its error itself
		r.failed, err = true, nil
	}
	return err
}

// kill kills the agents under load.
func (r *runner) kill(c *cluster.Cluster, times int) error {
	counted, err := c.Kill(times)
	r.tell(c, fmt.Sprintf("agents killed %d times under load: %s", times, counted), err)
	return nil
}

// versions switches versions of ClusterNetworkPolicy on and off.
func (r *runner) versions(c *cluster.Cluster) {
	counted, err := c.Versions()
	r.tell(c, "versions of ClusterNetworkPolicy switched on and off: "+counted, err)
}

// kubeadm follows the page for users.
func (r *runner) kubeadm(c *cluster.Cluster) {
	passed, err := c.Kubeadm()
	r.tell(c, "docs/kubernetes.md with kubeadm: "+passed, err)
}

// multus gives pods a second network in a link mode.
func (r *runner) multus(c *cluster.Cluster, link string) {
	counted, err := c.Multus("test/k8s", link)
	r.tell(c, "second network by Multus, "+link+": "+counted, err)
}

// apiVersions are the versions of ClusterNetworkPolicy, in the order of the definition of network-policy-api.
var apiVersions = []string{"v1alpha2", "v1beta1"}

// netpolAPI runs the conformance tests of network-policy-api with all features, in a cluster that serves one version of
// ClusterNetworkPolicy, and keeps how they ended. With -focus, it runs the tests that match.
func (r *runner) netpolAPI(ctx context.Context, c *cluster.Cluster, version string) error {
	suite, definition, err := r.cluster.Programs.NetpolAPI(ctx, "test/k8s", r.cluster.Dir)
	image, imageErr := r.cluster.Programs.Agnhost(ctx)
	report := filepath.Join(r.cluster.Dir, "log", "netpol-api.json")
	if err := errors.Join(err, imageErr, os.RemoveAll(report)); err != nil {
		return err
	}
	unserved := fmt.Sprintf(`[{"op": "replace", "path": "/spec/versions/%d/served", "value": false}]`,
		1-slices.Index(apiVersions, version))
	for _, args := range [][]string{
		{"kubectl", "apply", "--server-side", "-f", definition},
		{"kubectl", "patch", "-f", definition, "--type=json", "-p", unserved},
		{"kubectl", "wait", "-f", definition, "--for=condition=Established", "--timeout=60s"},
		{suite, "-image=" + image, "-agnhost=" + r.cluster.Programs.Path("agnhost"), "-version=" +
			version, "-report=" + report,
			"-test.run=TestConformance/" + r.selection.Focus, "-test.timeout=" + r.selection.Timeout.String()},
	} {
		if err := r.command(ctx, c, args); err != nil {
			return err
		}
	}
	return r.ended(c, "netpol-api "+version, report)
}

// up keeps a cluster until the program is interrupted.
func (r *runner) up(ctx context.Context, c *cluster.Cluster) error {
	fmt.Fprintf(r.stdout, "%s\n", strings.Join(c.Command(ctx, "bash").Args, " "))
	fmt.Fprintf(r.stdout, "export KUBECONFIG=%s PATH=%s:$PATH\n", c.Kubeconfig(),
		filepath.Dir(r.cluster.Programs.Path("kubectl")))
	return c.Wait()
}

// loadTime is how long agents restart under load.
const loadTime = 5 * time.Second

// test runs the smoke test, and records the results of specs. Unless specs are chosen by name, it also restarts agents
// under load, and removes Mustang in the end. The group short also tries commands, versions and flags.
func (r *runner) test(ctx context.Context, c *cluster.Cluster, group string) error {
	passed, err := c.Smoke()
	r.tell(c, fmt.Sprintf("smoke test: %d requests passed", passed), err)
	if r.selection.Focus != "" {
		return r.specs(ctx, c, group)
	}
	if group == "short" {
		r.tell(c, "commands for users tried", c.Tools())
		r.versions(c)
	}
	counted, err := c.Restart(loadTime)
	r.tell(c, fmt.Sprintf("agents restarted under load: %s", counted), err)
	if err := r.specs(ctx, c, group); err != nil {
		return err
	}
	if group == "short" {
		r.tell(c, "flags that exclude each other tried", c.Refused())
	}
	r.tell(c, "Mustang removed", c.Uninstall())
	return nil
}

// tell prints the result of a step, and its error.
func (r *runner) tell(c *cluster.Cluster, what string, err error) {
	fmt.Fprintf(r.stdout, "%v: %s\n", c.Setup, what)
	if err != nil {
		r.failed = true
		fmt.Fprintln(r.stdout, err)
	}
}

// specs runs specs, and keeps how they ended.
func (r *runner) specs(ctx context.Context, c *cluster.Cluster, group string) error {
	s := r.selection
	if g, ok := groups[group]; ok {
		s.Focus, s.Skip, s.Procs = g.Focus, g.Skip, g.Procs
	}
	if s.Focus == "" {
		return nil
	}
	report, err := c.Specs(ctx, s)
	if err != nil {
		return err
	}
	return r.ended(c, group, report)
}

// ended prints how specs ended by ginkgo's report, and keeps it.
func (r *runner) ended(c *cluster.Cluster, group, report string) error {
	names, run, err := readReport(report)
	if err != nil {
		return err
	}
	fmt.Fprintf(r.stdout, "%v: %d specs passed, %d failed, %d skipped themselves, in %d s\n", c.Setup, run.Passed,
		len(run.Failed), len(run.Skipped), run.Seconds)
	for name, message := range run.Failed {
		r.failed = true
		fmt.Fprintf(r.stdout, "  failed: %s: %s\n", name, message)
	}
	if r.record == "" {
		return nil
	}
	run.Setup, run.Group, run.Date = c.Setup.String(), group, time.Now().Format(time.DateOnly)
	summary, err := loadSummary(r.record)
	if err != nil {
		return err
	}
	summary.add(r.cluster.Programs.Version, names, run)
	return summary.save(r.record)
}

// table writes the tables of the summary into a document.
func (r *runner) table(document string) error {
	summary, err := loadSummary(r.record)
	if err != nil {
		return err
	}
	return summary.replace(document)
}
