# What a step might look for. $1 is the number of the machine's disk, STEP the process of
# the step. Each thing that is there prints a line `seen: …`.
#
# The pattern does not match itself.
find / \( -path /proc -o -path /sys \) -prune -o -type f -print 2>/dev/null >/tmp/files
echo "files: $(wc -l </tmp/files)"
xargs grep -ls 'canary-of-the-po[d]' </tmp/files | sed 's/^/seen: /'
for path in /contexts /data /kaniko /usr/local/bin/builder /var/run/secrets; do
  [ ! -e "$path" ] || echo "seen: $path"
done
for process in /proc/[0-9]*; do
  for file in environ cmdline; do
    tr '\0' '\n' <"$process/$file" 2>/dev/null | grep -q 'canary-of-the-po[d]' && echo "seen: $process/$file"
  done
  # Whoever has the program in its own root sees it through everybody.
  [ ! -e /usr/local/bin/builder ] || continue
  for place in root cwd; do
    [ ! -e "$process/$place/usr/local/bin/builder" ] || echo "seen: $process/$place"
  done
done
env | grep -q 'canary-of-the-po[d]' && echo "seen: the environment"
/attacks/attack "$1"
true
