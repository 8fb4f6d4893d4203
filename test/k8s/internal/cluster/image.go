// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// packages are the packages whose programs specs run in pods. busybox-static has the other programs of shell scripts.
var packages = []string{"bash", "bind9-dnsutils", "busybox-static", "catatonit", "curl", "dash", "iproute2", "libc-bin",
	"netcat-openbsd", "wget"}

// Registry is the nominal source of images: pods of tests find the images on the node and never pull them.
const Registry = "localhost/e2e"

// PauseImage is the image that holds a pod's namespaces.
const PauseImage = Registry + "/pause:local"

// invalid is the program, and the image, of a server that sends packets which connection tracking holds for invalid.
const invalid = "regression-issue-74839"

// images writes an archive of the images that pods of tests have: one layer, with two commands.
func (s Programs) images(ctx context.Context, archive string) (err error) {
	names, err := s.imageNames(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.dir, "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := download(ctx, dir); err != nil {
		return err
	}
	certificate := filepath.Join(s.source, "test/images/agnhost/porter/localhost.")
	text, err := templates.ReadFile("templates/image.sh")
	if err != nil {
		return err
	}
	_, err = output(ctx, dir, "bash", "-euc", string(text), "image.sh", s.Path("agnhost"), s.Path("coredns"),
		s.Path(invalid), certificate+"crt", certificate+"key")
	if err != nil {
		return err
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, invalid) })
	if i < 0 {
		return fmt.Errorf("the specs have no image %s", invalid)
	}
	server := names[i : i+1]
	names = slices.Delete(slices.Clone(names), i, i+1)
	return pack(ctx, archive, dir, []image{
		{[]string{PauseImage}, map[string]any{"Entrypoint": []string{"/usr/bin/catatonit", "-P"}, "User": "65535:65535"}},
		{server, map[string]any{"Entrypoint": []string{"/" + invalid}}},
		{names, map[string]any{
			"Entrypoint": []string{"/agnhost"}, "Cmd": []string{"pause"},
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"},
		}},
	})
}

// RepoList is the content of the file that the environment variable KUBE_TEST_REPO_LIST names: it has specs use
// [Registry].
func RepoList() string {
	return "promoterE2eRegistry: " + Registry + "\ngcRegistry: " + Registry + "\n"
}

// imageNames returns the names of the specs' images, among them agnhost and the image in which DNS specs run dig.
func (s Programs) imageNames(ctx context.Context) ([]string, error) {
	list := s.Path("repositories.yaml")
	if err := os.WriteFile(list, []byte(RepoList()), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, s.Path("e2e.test"), "--list-images")
	cmd.Env = append(os.Environ(), "KUBE_TEST_REPO_LIST="+list)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	names := regexp.MustCompile(`(?m)^`+Registry+`/(agnhost|jessie-dnsutils|pause|busybox|`+invalid+
		`):\S+$`).FindAllString(string(out), -1)
	if len(names) < 2 {
		return nil, fmt.Errorf("the specs' images are %q", out)
	}
	return names, nil
}

// Agnhost returns the name of the image that answers over networks.
func (s Programs) Agnhost(ctx context.Context) (string, error) {
	names, err := s.imageNames(ctx)
	if i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, "/agnhost:") }); i >= 0 {
		return names[i], nil
	}
	return "", errors.Join(err, errors.New("the specs name no agnhost"))
}

// download downloads packages and their dependencies, as for an empty machine. It tries again with a new list of
// packages.
func download(ctx context.Context, dir string) error {
	args := []string{"-qq", "-y", "-o", "Dir::State::status=/dev/null", "-o", "APT::Sandbox::User=root", "-o",
		"Dir::Cache::archives=" + dir,
		"--no-install-recommends", "--download-only", "install"}
	args = append(args, packages...)
	if _, err := output(ctx, dir, "apt-get", args...); err == nil {
		return nil
	}
	if _, err := output(ctx, dir, "apt-get", "-qq", "update"); err != nil {
		return err
	}
	_, err := output(ctx, dir, "apt-get", args...)
	return err
}

// image is one of the archive.
type image struct {
	tags   []string
	config map[string]any
}

// pack writes images of dir/layer.tar as an archive of the form that docker save writes.
func pack(ctx context.Context, archive, dir string, images []image) error {
	sum, err := output(ctx, dir, "sha256sum", "layer.tar")
	if err != nil {
		return err
	}
	files := []string{"-cf", archive, "layer.tar", "manifest.json"}
	var manifest []map[string]any
	for i, image := range images {
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH, "os": "linux", "config": image.config,
			"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + string(sum[:64])}},
		})
		name := fmt.Sprint(i, ".json")
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), config, 0o644)); err != nil {
			return err
		}
		files = append(files, name)
		manifest = append(manifest, map[string]any{"Config": name, "RepoTags": image.tags, "Layers": []string{"layer.tar"}})
	}
	data, err := json.Marshal(manifest)
	if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "manifest.json"), data, 0o644)); err != nil {
		return err
	}
	_, err = output(ctx, dir, "tar", files...)
	return err
}
