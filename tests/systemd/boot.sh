# Process 1 of a machine in its own namespaces (machine.py). $1: a folder with what it needs; $2...: folders of ours that
# its users must be able to read. Nothing that it does reaches the files of the machine around it.
set -eu
given=$1
shift
mount --make-rprivate /
mount -t proc proc /proc
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/given /run/keep /run/systemd
mount --bind "$given" /run/given
for folder; do
  mkdir -p "/run/keep$folder"
  mount --rbind "$folder" "/run/keep$folder"
done
for place in /var /tmp /root /home; do
  mount -t tmpfs -o mode=755 tmpfs $place
done
chmod 1777 /tmp
mkdir -p /var/tmp /var/lib
for folder; do
  if [ ! -e "$folder" ]; then
    mkdir -p "$folder"
    mount --rbind "/run/keep$folder" "$folder"
  fi
done
cp -r /run/given/system /run/systemd/system
cp -a /etc /run/etc
mount --bind /run/etc /etc
cp -r /run/given/etc/. /etc/
systemd-sysusers /etc/sysusers.d/luced.conf /etc/sysusers.d/user.conf
systemd-tmpfiles --create /etc/tmpfiles.d/luced.conf
install -D -m 0644 -t /var/lib/luce/models /run/given/models/*
mkdir -p /home/alice/.config/systemd /home/alice/.local/bin
cp -r /run/given/user /home/alice/.config/systemd/user
ln -s /run/given/luced /home/alice/.local/bin/luced
chown -R alice:alice /home/alice
# The units of the machine around it are not looked at: some would mount, or empty /tmp.
exec env -i PATH="$PATH" container=x SYSTEMD_UNIT_PATH=/run/systemd/system \
  /lib/systemd/systemd --system --log-target=console --default-standard-output=journal
