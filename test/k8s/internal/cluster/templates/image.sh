# SPDX-License-Identifier: Apache-2.0
#
# Makes layer.tar, the file system of all images, of the Debian packages in the working directory and of the files that are its arguments.
mkdir -p root/usr/{bin,sbin,lib,lib64,local/bin} root/{dev,etc,home,proc,root,run,sys,tmp,uploads,var/run}
cd root
link() { [ -e "$2" ] || [ -L "$2" ] || ln -s "$1" "$2"; }
for name in bin sbin lib lib64; do link usr/$name $name; done
for package in ../*.deb; do dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink; done
# No program needs these.
rm -rf usr/share/{doc,man,locale,info,lintian,bash-completion,common-licenses} usr/lib/*/gconv

link dash usr/bin/sh
link nc.openbsd usr/bin/nc
link mawk usr/bin/awk
link agnhost agnhost-2
for name in $(busybox --list); do
	[ -e "usr/sbin/$name" ] || link busybox "usr/bin/$name"
done
install -m 755 "$@" .
cat >etc/passwd <<END
root:x:0:0:root:/root:/bin/sh
user-defined-in-image:x:1000:1000::/home:/bin/sh
END
cat >etc/group <<END
root:x:0:
user-defined-in-image:x:1000:
group-defined-in-image:x:50000:user-defined-in-image
END
echo 'hosts: files dns' >etc/nsswitch.conf
chmod 1777 dev etc home proc root run sys tmp uploads usr/local/bin usr/sbin usr/lib64 var/run
tar -cf ../layer.tar --sort=name .
