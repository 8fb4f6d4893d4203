// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Kubeadm builds kubeadm from the modules of the other programs, and the archive of the images that its Pods have.
func (s Programs) Kubeadm(ctx context.Context, source string, tell io.Writer) error {
	p := program{"kubeadm", filepath.Join(source, "kubernetes"), "k8s.io/kubernetes/cmd/kubeadm"}
	if err := s.build(p.name, tell, func(path string) error { return s.compile(ctx, p, path) }); err != nil {
		return err
	}
	return s.build("kubeadm.tar", tell, func(path string) error { return s.kubeadmImages(ctx, path) })
}

// kubeadmNames returns the names of images by their programs, without kube-proxy.
func (s Programs) kubeadmNames(ctx context.Context) (map[string]string, error) {
	out, err := output(ctx, s.dir, s.Path("kubeadm"), "config", "images", "list", "--kubernetes-version="+s.Version)
	names := map[string]string{}
	for name := range strings.FieldsSeq(string(out)) {
		base, _, _ := strings.Cut(filepath.Base(name), ":")
		names[base] = name
	}
	delete(names, "kube-proxy")
	return names, err
}

// kubeadmImages writes an archive of these images: one layer with the programs. pause has its image already.
func (s Programs) kubeadmImages(ctx context.Context, archive string) (err error) {
	names, err := s.kubeadmNames(ctx)
	if err != nil {
		return err
	}
	delete(names, "pause")
	dir, err := os.MkdirTemp(s.dir, "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs := slices.Sorted(maps.Keys(names))
	if _, err := output(ctx, dir, "tar", append([]string{"-cf", "layer.tar", "-C", s.dir}, programs...)...); err != nil {
		return err
	}
	var images []image
	for _, name := range programs {
		images = append(images, image{[]string{names[name]},
			map[string]any{"Entrypoint": []string{"/" + name}, "Env": []string{"PATH=/"}}})
	}
	return pack(ctx, archive, dir, images)
}

// Patterns of the commands on the page for users, docs/kubernetes.md, and of the image in them.
const (
	pageInit     = `(?m)^(kubeadm init .*?) +#`
	pageHelm     = "`(helm install [^`]+)`"
	pageManifest = "(?s)\\*\\*2\\. .*?```sh\n(.*?)```"
	pageTaint    = "`(kubectl taint [^`]+)`"
	pagePods     = "(?s)\\*\\*3\\. .*?```sh\n(.*?)```"
	pageImage    = `--image=(\S+)`
)

// page returns the part of the page that a pattern matches.
func (c *Cluster) page(pattern string) (string, error) {
	text, err := os.ReadFile(c.Page)
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	if err == nil && found == nil {
		err = fmt.Errorf("%s has no text that matches %s", c.Page, pattern)
	}
	if err != nil {
		return "", err
	}
	return string(found[1]), nil
}

// follow runs commands of the page on node 1, the last one with more arguments.
func (c *Cluster) follow(pattern string, more ...string) error {
	commands, err := c.page(pattern)
	if err == nil {
		root := filepath.Dir(filepath.Dir(c.Page))
		err = c.nodes[0].bash(nil, "cd "+root+"\n"+commands+" "+strings.Join(more, " "))
	}
	return err
}

// bash runs a script on the node as its administrator does. It writes the output to out, unless that is nil.
func (n *node) bash(out *strings.Builder, script string) error {
	cmd := n.command(n.c.ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Env = append(os.Environ(), "KUBECONFIG=/etc/kubernetes/admin.conf", "PATH="+strings.Join([]string{n.path("bin"),
		filepath.Dir(n.c.Programs.Path("kubeadm")), filepath.Dir(n.c.Helm), os.Getenv("PATH")}, ":"))
	var all strings.Builder
	cmd.Stdout, cmd.Stderr = &all, &all
	if out != nil {
		cmd.Stdout = out
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %s: %w: %s", n.name, script, err, all.String())
	}
	return nil
}

// kubeadmSteps start a cluster as the page says it for kubeadm, with Mustang installed by Helm before node 2 joins.
func (c *Cluster) kubeadmSteps() []step {
	return []step{
		{"nodes", c.startNodes},
		{"container runtimes", c.startRuntimes},
		{"kubeadm init", c.kubeadmInit},
		{"no network", c.awaitNoNetwork},
		{"Mustang by Helm", func() error { return c.follow(pageHelm) }},
		{"pods on the control plane", func() error { return c.follow(pageTaint) }},
		{"a node that is ready", func() error { return c.nodesReady("node1") }},
		{"kubeadm join", c.kubeadmJoin},
		{"nodes that are ready", func() error { return c.nodesReady("node1", "node2") }},
	}
}

// startRuntimes prepares nodes for kubeadm, with all images that pods have.
func (c *Cluster) startRuntimes() error {
	names, err := c.Programs.kubeadmNames(c.ctx)
	agnhost, agnhostErr := c.Programs.Agnhost(c.ctx)
	shown, shownErr := c.page(pageImage)
	linkErr := os.Symlink(c.nodes[0].path("kubernetes", "admin.conf"), c.Kubeconfig())
	if err := errors.Join(err, agnhostErr, shownErr, linkErr); err != nil {
		return err
	}
	var group errgroup.Group
	for _, n := range c.nodes {
		group.Go(func() error {
			if err := n.prepare(); err != nil {
				return err
			}
			if err := n.startRuntime(c.Programs.Images(), c.Image, c.Programs.Path("kubeadm.tar")); err != nil {
				return err
			}
			tag := []string{"ctr", "-n", "k8s.io", "images", "tag"}
			return errors.Join(n.run(append(tag, PauseImage, names["pause"])...), n.run(append(tag, agnhost, shown)...))
		})
	}
	return group.Wait()
}

// prepare gives the node what kubeadm expects of a machine: directories of its own, forwarding, the address of a name
// server, which does not answer, and a systemctl.
func (n *node) prepare() error {
	text, err := templates.ReadFile("templates/kubeadm.sh")
	for _, sub := range []string{"bin", "kubernetes", "patches"} {
		err = errors.Join(err, os.MkdirAll(n.path(sub), 0o755))
	}
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(n.path("resolv.conf"), []byte("nameserver 10.197.0.1\n"), 0o644),
		n.c.write("kubeadm.yaml", n.path("patches", "kubeletconfiguration.yaml"), "/"+n.c.name+"/"+n.name),
		n.c.write("systemctl", n.path("bin", "systemctl"), n.c.path("log", n.name+"-kubelet.log")),
		n.run("bash", "-euc", string(text), "kubeadm.sh", n.path()))
}

// kubeadmInit starts the control plane.
func (c *Cluster) kubeadmInit() error {
	return c.follow(pageInit, "--kubernetes-version="+c.Programs.Version, "--patches="+c.nodes[0].path("patches"))
}

// awaitNoNetwork returns when node 1 says that it is not ready because it has no network.
func (c *Cluster) awaitNoNetwork() error {
	return c.await(time.Minute, func() error {
		said, err := c.kubectl(nil, "get", "node", "node1", "-o",
			`jsonpath={.status.conditions[?(@.type=="Ready")].message}`)
		if err == nil && !strings.Contains(said, "NetworkPluginNotReady") {
			err = fmt.Errorf("node1 without a network says %q", said)
		}
		return err
	})
}

// kubeadmJoin joins node 2, which gets Mustang without a further step.
func (c *Cluster) kubeadmJoin() error {
	var command strings.Builder
	err := c.nodes[0].bash(&command, "kubeadm token create --print-join-command")
	if err == nil {
		err = c.nodes[1].bash(nil, strings.TrimSpace(command.String())+" --patches="+c.nodes[1].path("patches"))
	}
	return err
}

// nodesReady returns when nodes are ready, and Mustang on them.
func (c *Cluster) nodesReady(names ...string) error {
	commands := [][]string{{"-n", "kube-system", "rollout", "status", "daemonset/mustang", "--timeout=180s"}}
	for _, name := range names {
		commands = append([][]string{{"wait", "node/" + name, "--for=create", "--timeout=60s"},
			{"wait", "node/" + name, "--for=condition=Ready", "--timeout=180s"}}, commands...)
	}
	for _, command := range commands {
		if _, err := c.kubectl(nil, command...); err != nil {
			return err
		}
	}
	return nil
}

// Kubeadm has a cluster of kubeadm go on as the page says: pods and a Service, an upgrade of the chart, the manifest in
// place of the chart. Then kubeadm resets the nodes, and the first one starts a new cluster, where Mustang finds what
// the last one left. It returns the steps that passed.
func (c *Cluster) Kubeadm() (string, error) {
	helm := func(words string) func() error {
		return func() error { return c.nodes[0].bash(nil, "helm -n kube-system "+words) }
	}
	var passed []string
	for _, s := range []step{
		{"pods and a Service", func() error { return c.follow(pagePods) }},
		{"clients", c.kubeadmClients},
		{"upgrade with --set alone", helm("upgrade mustang " + c.Chart + " --set agent.namespaceQuota=7")},
		{"clients", c.kubeadmClients},
		{"uninstall", helm("uninstall mustang --wait")},
		{"manifest", func() error { return c.follow(pageManifest) }},
		{"clients", c.kubeadmClients},
		{"kubeadm reset", c.kubeadmReset},
		{"kubeadm init again", c.kubeadmInit},
		{"Mustang by Helm", func() error { return c.follow(pageHelm) }},
		{"pods on the control plane", func() error { return c.follow(pageTaint) }},
		{"pods and a Service", func() error { return c.follow(pagePods) }},
	} {
		start := time.Now()
		if err := s.do(); err != nil {
			return strings.Join(passed, ", "), fmt.Errorf("%s: %w", s.name, err)
		}
		passed = append(passed, fmt.Sprintf("%s in %.0f s", s.name, time.Since(start).Seconds()))
	}
	return strings.Join(passed, ", "), nil
}

// serverPath is where the DaemonSet has the address of the API server.
const serverPath = `{.spec.template.spec.containers[0].env[?(@.name=="KUBERNETES_SERVICE_HOST")].value}`

// kubeadmClients checks which API server the agents have, and starts a client on each node. It reaches the page's
// Service by its name, and each of its pods.
func (c *Cluster) kubeadmClients() error {
	if err := c.nodesReady("node1", "node2"); err != nil {
		return err
	}
	server, err := c.kubectl(nil, "-n", "kube-system", "get", "daemonset", "mustang", "-o", "jsonpath="+serverPath)
	if want := c.nodes[0].addrs[0]; err == nil && server != want {
		err = fmt.Errorf("the agents have the API server %q, want %s", server, want)
	}
	image, imageErr := c.page(pageImage)
	pods, podsErr := c.kubectl(nil, "get", "pod", "-l", "app=web", "-o", `jsonpath={.items[*].status.podIP}`)
	if err := errors.Join(err, imageErr, podsErr); err != nil {
		return err
	}
	urls := []string{"web/hostname"}
	for pod := range strings.FieldsSeq(pods) {
		urls = append(urls, pod+":8080/hostname")
	}
	for _, n := range c.nodes {
		args := append([]string{"run", "client-" + n.name, "--rm", "-i", "--restart=Never", "--image=" + image,
			`--overrides={"apiVersion": "v1", "spec": {"nodeName": "` + n.name + `"}}`, "--command", "--",
			"curl", "-sS", "--fail-early", "--max-time", "20", "-w", `\n`}, urls...)
		answers := 0
		// kubectl can attach too late for the output, not for the exit code.
		for try := 0; try < 3 && answers != len(urls); try++ {
			out, err := c.kubectl(nil, args...)
			if err != nil {
				return err
			}
			answers = strings.Count(out, "web-")
		}
		if answers != len(urls) {
			return fmt.Errorf("a client on %s has %d answers of %q", n.name, answers, urls)
		}
	}
	return nil
}

// kubeadmReset resets the nodes: no container, no file and no kubelet are left.
func (c *Cluster) kubeadmReset() error {
	for _, n := range slices.Backward(c.nodes) {
		var said, left strings.Builder
		err := n.bash(&said, "kubeadm reset --force 2>&1")
		if err == nil {
			err = n.bash(&left, "ctr -n k8s.io containers ls -q; pgrep -l -x kubelet || true\n"+
				"find /etc/kubernetes /var/lib/kubelet -mindepth 1 -not -type d")
		}
		if err == nil && left.Len() > 0 {
			err = fmt.Errorf("kubeadm reset left on %s:\n%s\nit says:\n%s", n.name, &left, &said)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
