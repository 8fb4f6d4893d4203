// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// packages are those whose programs specs run in pods. busybox-static has what else a shell script runs.
var packages = []string{"bash", "bind9-dnsutils", "busybox-static", "catatonit", "curl", "dash", "iproute2", "libc-bin", "netcat-openbsd", "wget"}

// Registry is where images are said to come from: pods of tests find them on the node and never ask for them.
const Registry = "localhost/e2e"

// PauseImage is the image that holds a pod's namespaces.
const PauseImage = Registry + "/pause:local"

// invalid is the program, and the image, of a server that sends packets which connection tracking holds for invalid.
const invalid = "regression-issue-74839"

// useless starts the names of files of packages that no program needs.
var useless = regexp.MustCompile(`^usr/(share/(doc|man|locale|info|lintian|bash-completion|common-licenses)|lib/[^/]+/gconv)/`)

// layer is the file system of all images.
type layer struct {
	*tar.Writer
	seen map[string]bool
}

// images writes an archive of the images that pods of tests have: one layer, with two commands.
func (s Set) images(ctx context.Context, archive string) (err error) {
	names, err := s.imageNames(ctx)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.dir, "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file, err := os.Create(filepath.Join(dir, "layer.tar"))
	if err != nil {
		return err
	}
	defer file.Close()
	digest := sha256.New()
	l := layer{tar.NewWriter(io.MultiWriter(file, digest)), map[string]bool{}}
	if err := errors.Join(s.fill(ctx, l, dir), l.Close()); err != nil {
		return err
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, invalid) })
	if i < 0 {
		return fmt.Errorf("the specs have no image %s", invalid)
	}
	server := names[i : i+1]
	names = slices.Delete(slices.Clone(names), i, i+1)
	diff := "sha256:" + hex.EncodeToString(digest.Sum(nil))
	return pack(archive, file, []image{
		{tags: []string{PauseImage}, diff: diff, config: map[string]any{"Entrypoint": []string{"/usr/bin/catatonit", "-P"}, "User": "65535:65535"}},
		{tags: server, diff: diff, config: map[string]any{"Entrypoint": []string{"/" + invalid}}},
		{tags: names, diff: diff, config: map[string]any{
			"Entrypoint": []string{"/agnhost"}, "Cmd": []string{"pause"},
			"Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"},
		}},
	})
}

// RepoList is the content of the file that the environment variable KUBE_TEST_REPO_LIST names: it has specs use [Registry].
func RepoList() string {
	return "promoterE2eRegistry: " + Registry + "\ngcRegistry: " + Registry + "\n"
}

// imageNames asks the specs for the names of their images, by which agnhost goes. DNS specs run dig in the other.
func (s Set) imageNames(ctx context.Context) ([]string, error) {
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
	names := regexp.MustCompile(`(?m)^`+Registry+`/(agnhost|jessie-dnsutils|pause|busybox|`+invalid+`):\S+$`).FindAllString(string(out), -1)
	if len(names) < 2 {
		return nil, fmt.Errorf("the specs' images are %q", out)
	}
	return names, nil
}

// Agnhost returns the name of the image that answers over networks.
func (s Set) Agnhost(ctx context.Context) (string, error) {
	names, err := s.imageNames(ctx)
	if i := slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, "/agnhost:") }); i >= 0 {
		return names[i], nil
	}
	return "", errors.Join(err, errors.New("the specs name no agnhost"))
}

// fill writes the files of packages, agnhost and CoreDNS.
func (s Set) fill(ctx context.Context, l layer, dir string) error {
	for _, name := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := l.link(name, "usr/"+name); err != nil {
			return err
		}
	}
	for _, name := range []string{"dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "uploads", "usr/local/bin", "usr/sbin", "usr/lib64", "var/run"} {
		if err := l.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o1777}); err != nil {
			return err
		}
		l.seen[name] = true
	}
	if err := download(ctx, dir); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range debs {
		files, err := output(ctx, dir, "dpkg-deb", "--fsys-tarfile", deb)
		if err == nil {
			err = l.addPackage(tar.NewReader(bytes.NewReader(files)))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(deb), err)
		}
	}
	links := map[string]string{"usr/bin/sh": "dash", "usr/bin/nc": "nc.openbsd", "agnhost-2": "agnhost", "usr/bin/awk": "mawk"}
	for _, name := range slices.Sorted(maps.Keys(links)) {
		if err := l.link(name, links[name]); err != nil {
			return err
		}
	}
	if err := l.addBusybox(ctx); err != nil {
		return err
	}
	return s.addTests(l)
}

// download downloads packages and what they need, as for an empty machine. It tries again with a new list of packages.
func download(ctx context.Context, dir string) error {
	args := []string{"-qq", "-y", "-o", "Dir::State::status=/dev/null", "-o", "APT::Sandbox::User=root", "-o", "Dir::Cache::archives=" + dir,
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

// addPackage copies the files of a package, by their names in a system whose /bin is /usr/bin.
func (l layer) addPackage(files *tar.Reader) error {
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if header.Name = strings.TrimPrefix(path.Clean(header.Name), "./"); strings.HasPrefix(header.Name, "bin/") ||
			strings.HasPrefix(header.Name, "sbin/") || strings.HasPrefix(header.Name, "lib") {
			header.Name = "usr/" + header.Name
		}
		if l.seen[header.Name] || useless.MatchString(header.Name) || header.Name == "usr/lib" && header.Typeflag != tar.TypeDir {
			continue
		}
		l.seen[header.Name] = true
		if err := l.WriteHeader(header); err != nil {
			return err
		}
		if _, err := io.Copy(l, files); err != nil {
			return err
		}
	}
}

// addBusybox gives each of busybox's programs its name, but those that a package has.
func (l layer) addBusybox(ctx context.Context) error {
	names, err := exec.CommandContext(ctx, "busybox", "--list").Output()
	if err != nil {
		return fmt.Errorf("busybox: %w", err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if !l.seen["usr/bin/"+name] && !l.seen["usr/sbin/"+name] {
			if err := l.link("usr/bin/"+name, "busybox"); err != nil {
				return err
			}
		}
	}
	return nil
}

// addTests adds what the image agnhost has beside packages.
func (s Set) addTests(l layer) error {
	certificates := filepath.Join(s.source, "test/images/agnhost/porter")
	for _, name := range []string{s.Path("agnhost"), s.Path("coredns"), s.Path(invalid), filepath.Join(certificates, "localhost.crt"), filepath.Join(certificates, "localhost.key")} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := l.file(filepath.Base(name), 0o755, data); err != nil {
			return err
		}
	}
	files := map[string]string{
		"etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n",
		"etc/group":         "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
		"etc/nsswitch.conf": "hosts: files dns\n",
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := l.file(name, 0o644, []byte(files[name])); err != nil {
			return err
		}
	}
	return nil
}

// file writes a file.
func (l layer) file(name string, mode int64, data []byte) error {
	l.seen[name] = true
	if err := l.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := l.Write(data)
	return err
}

// link writes a symbolic link, unless its name is taken.
func (l layer) link(name, target string) error {
	if l.seen[name] {
		return nil
	}
	l.seen[name] = true
	return l.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777})
}

// image is one of the archive.
type image struct {
	tags   []string
	diff   string // the digest of its layer
	config map[string]any
}

// pack writes images of one layer as an archive of the form that docker save writes.
func pack(archive string, file *os.File, images []image) (err error) {
	out, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	l := layer{tar.NewWriter(out), map[string]bool{}}
	var manifest []map[string]any
	for _, i := range images {
		config, err := json.Marshal(map[string]any{
			"architecture": runtime.GOARCH, "os": "linux", "config": i.config, "rootfs": map[string]any{"type": "layers", "diff_ids": []string{i.diff}},
		})
		if err != nil {
			return err
		}
		sum := sha256.Sum256(config)
		name := hex.EncodeToString(sum[:]) + ".json"
		if err := l.file(name, 0o644, config); err != nil {
			return err
		}
		manifest = append(manifest, map[string]any{"Config": name, "RepoTags": i.tags, "Layers": []string{"layer.tar"}})
	}
	data, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := errors.Join(l.file("manifest.json", 0o644, data),
		l.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "layer.tar", Mode: 0o644, Size: info.Size()})); err != nil {
		return err
	}
	_, err = io.Copy(l, file)
	return errors.Join(err, l.Close())
}
